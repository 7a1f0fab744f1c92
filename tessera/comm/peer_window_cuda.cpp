#include "tessera/comm/peer_window.h"

#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <fstream>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/comm/below_autograd.h"
#include "tessera/device/growing_segments.h"

namespace tessera {
namespace {

// Where the system does not tell, machines cannot be told apart: then opening
// the memory fails, or does not.
std::string machine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot.empty() ? "unknown" : boot;
}

constexpr const char* kOfferMark = "window";

/// What a rank tells the others of its window.
struct Offer {
  std::string machine;
  ptrdiff_t offset = 0;
  std::string handle;

  [[nodiscard]] std::string text() const {
    return str(kOfferMark, ' ', machine, ' ', offset, ' ', handle);
  }
  static Offer parse(const std::string& text) {
    Offer offer;
    std::istringstream in(text);
    std::string mark;
    in >> mark >> offer.machine >> offer.offset;
    if (!in || mark != kOfferMark) return offer;
    in.get();
    offer.handle.assign(std::istreambuf_iterator<char>(in), {});
    return offer;
  }
};

Offer offer_of(const at::Tensor& own) {
  const auto shared =
      c10::cuda::CUDACachingAllocator::shareIpcHandle(own.mutable_data_ptr());
  return {machine(), shared.offset, shared.handle};
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

PeerWindow::PeerWindow(int64_t num_bytes, const PeerLink::Place& place,
                       const PeerLink::Exchange& exchange, std::string& why) {
  const BelowAutograd below_autograd;
  std::string trouble;
  std::string offer;
  try {
    // That of segments that grow would be shared through files of the process,
    // which hosts and containers often forbid.
    const PlainSegments plain;
    own_ = at::zeros({num_bytes},
                     at::TensorOptions(at::kByte).device(place.device));
    offer = offer_of(own_).text();
    c10::cuda::device_synchronize();  // the zeros are there
  } catch (const c10::Error& error) {
    offer.clear();
    trouble = str("rank ", place.rank, " cannot share its memory: ",
                  first_line(error.what_without_backtrace()));
  }
  map(exchange(offer), place, trouble);
  for (const std::string& of_rank : exchange(trouble)) {
    if (why.empty()) why = of_rank;
  }
}

void PeerWindow::map(const std::vector<std::string>& offers,
                     const PeerLink::Place& place, std::string& trouble) {
  for (int rank = 0; rank < place.size && trouble.empty(); ++rank) {
    if (rank == place.rank) {
      mapped_.emplace_back();
      addresses_.push_back(static_cast<char*>(own_.mutable_data_ptr()));
      continue;
    }
    const Offer offer = Offer::parse(offers[rank]);
    if (offer.handle.empty()) {
      trouble = str("rank ", rank, " offers no memory");
    } else if (offer.machine != machine()) {
      trouble = str("ranks ", place.rank, " and ", rank,
                    " are on different machines");
    } else {
      try {
        mapped_.push_back(
            c10::cuda::CUDACachingAllocator::getIpcDevPtr(offer.handle));
        addresses_.push_back(static_cast<char*>(mapped_.back().get()) +
                             offer.offset);
      } catch (const c10::Error& error) {
        trouble = str("rank ", place.rank, " cannot map the memory of rank ",
                      rank, ": ", first_line(error.what_without_backtrace()));
      }
    }
  }
}

}  // namespace tessera
