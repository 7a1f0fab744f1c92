#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <exception>
#include <string>

#include "tessera/base/error.h"
#include "tessera/device/capture.h"
#include "tessera/device/stream.h"
#include "tessera/graph/device_graph.h"
#include "tessera/graph/failed_operator.h"
#include "tessera/module/captured_random.h"

namespace tessera {

namespace {

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// Runs `call`; its error, or nothing.
std::exception_ptr error_of(const std::function<void()>& call) {
  try {
    call();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

std::string reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& caught) {
    return first_line(caught.what_without_backtrace());
  } catch (const std::exception& caught) {
    return first_line(caught.what());
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

/// Work of this scope is on `stream`: after what was asked of the stream before
/// it, and before what comes after.
class Aside {
 public:
  explicit Aside(c10::Stream stream)
      : before_(current_stream(stream.device())), stream_(stream) {
    order(before_, stream_);
    scope_.emplace(stream_);
  }
  ~Aside() {
    scope_.reset();
    order(stream_, before_);
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

 private:
  static void order(const c10::Stream& first, const c10::Stream& second) {
    StreamEvent done;
    done.record(first);
    done.block(second);
  }

  const c10::Stream before_;
  const c10::Stream stream_;
  std::optional<StreamScope> scope_;
};

}  // namespace

struct DeviceGraph::Impl {
  explicit Impl(c10::Device where)
      : device(where), stream(make_stream(where, StreamPriority::normal)) {}

  void give_back_memory() const {
    wait();
    c10::cuda::CUDACachingAllocator::emptyCache();
  }

  /// After a capture that did not end well: LibTorch's allocator and generator
  /// would go on as if it were under way.
  void clean_up(c10::MempoolId_t pool) const {
    const auto index = device.index();
    (void)error_of([&] {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(index, pool);
    });
    (void)error_of(
        [&] { c10::cuda::CUDACachingAllocator::releasePool(index, pool); });
    leave_capture(at::cuda::detail::getDefaultCUDAGenerator(index));
    (void)cudaGetLastError();
  }

  void wait() const {
    const c10::cuda::CUDAGuard guard(device);
    c10::cuda::device_synchronize();
  }

  /// Does not wait: where a replay is stuck, the rank has an error to report.
  /// What a replay at work may still write is then nobody's any more.
  void drop() {
    if (!graph) return;
    bool is_idle = false;
    (void)error_of([&] { is_idle = replayed.reached(); });
    graph.reset();
    if (is_idle) note_graph_gone(id);
  }

  c10::Device device;
  c10::Stream stream;
  std::unique_ptr<at::cuda::CUDAGraph> graph;
  uint64_t id = 0;  // of its capture
  StreamEvent replayed;
};

DeviceGraph::DeviceGraph(c10::Device device) {
  require<Unsupported>(device.is_cuda(), [&] {
    return tessera::str("GraphedStep: a step on ", device,
                        " cannot be captured as a CUDA graph; run it without "
                        "one.");
  });
  impl_ = std::make_unique<Impl>(device);
}

DeviceGraph::~DeviceGraph() {
  if (impl_) impl_->drop();
}

bool DeviceGraph::captured() const { return impl_->graph != nullptr; }

void DeviceGraph::drop() { impl_->drop(); }

void DeviceGraph::run(const std::function<void()>& body) {
  const Aside aside(impl_->stream);
  body();
}

void DeviceGraph::capture(const std::function<void()>& body) {
  impl_->wait();
  drop();
  impl_->give_back_memory();
  const Aside aside(impl_->stream);
  const FailedOperator failed;
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  // Other threads (NCCL's watchdog) may call what a capture must not.
  const auto pool = at::cuda::graph_pool_handle();
  graph->capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  impl_->id = capture_id(impl_->device).value_or(0);
  auto error = error_of(body);
  const auto at_end = error_of([&] { graph->capture_end(); });
  if (at_end) impl_->clean_up(pool);
  if (!error) error = at_end;
  if (!error) {
    impl_->graph = std::move(graph);
    return;
  }
  note_graph_gone(impl_->id);
  const std::string where = failed.describe();
  throw Unsupported(str(
      "the step cannot be captured as a CUDA graph: ", reason_of(error),
      where.empty() ? "" : str(" It failed in ", where, "."),
      " A captured step may not wait for the device: no item(), no cpu(), no "
      "branch on a tensor's value, no tensor made from values on the host."));
}

void DeviceGraph::replay() {
  impl_->graph->replay();
  impl_->replayed.record(current_stream(impl_->device));
}

}  // namespace tessera
