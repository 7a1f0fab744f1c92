#include "tessera/state/peers.h"

#include <exception>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// The first byte says what the rest is.
constexpr char kResult = '=';
constexpr char kInvalidArgument = 'A';
constexpr char kInvalidState = 'S';
constexpr char kUnsupported = 'U';
constexpr char kOther = 'C';

std::string outcome_of(const std::function<std::string()>& body) {
  try {
    return kResult + body();
  } catch (const InvalidArgument& error) {
    return str(kInvalidArgument, error.what());
  } catch (const InvalidState& error) {
    return str(kInvalidState, error.what());
  } catch (const Unsupported& error) {
    return str(kUnsupported, error.what());
  } catch (const std::exception& error) {
    return str(kOther, error.what());
  } catch (...) {
    return str(kOther, "an exception of unknown type");
  }
}

[[noreturn]] void raise(char kind, const std::string& text) {
  switch (kind) {
    case kInvalidArgument:
      throw InvalidArgument(text);
    case kInvalidState:
      throw InvalidState(text);
    case kUnsupported:
      throw Unsupported(text);
    default:
      throw CheckpointError(text);
  }
}

}  // namespace

std::vector<std::string> all_or_none(const Peers& peers,
                                     const std::string& what,
                                     const std::function<std::string()>& body) {
  std::vector<std::string> all = peers.exchange(outcome_of(body));
  size_t failed = all.size();
  size_t num_failed = 0;
  for (size_t rank = all.size(); rank-- > 0;) {
    if (all[rank].front() == kResult) continue;
    failed = rank;
    ++num_failed;
  }
  if (num_failed > 0) {
    const std::string where = peers.size > 1 ? str(" on rank ", failed) : "";
    const std::string others =
        num_failed > 1 ? str(" (", num_failed - 1, " other ranks failed too)")
                       : "";
    raise(all[failed].front(),
          str(what, " failed", where, ": ", all[failed].substr(1), others));
  }
  for (std::string& result : all) result.erase(0, 1);
  return all;
}

}  // namespace tessera
