// Messages, objects, works, stores, and the options of init_distributed.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <thread>

#include "tessera/base/environment.h"
#include "tessera/base/error.h"
#include "tessera/comm/distributed.h"
#include "tessera/comm/stores.h"
#include "tessera/comm/world.h"

namespace tessera::distributed {
namespace {

using namespace std::chrono_literals;
using Tensors = std::vector<torch::Tensor>;

constexpr auto kTimeout = 20s;

template <class Body>
void for_each_group(Body body) {
  for (const int size : {1, 2, 3}) {
    run_ranks(
        size, [&](const World& world) { body(new_group(world)); }, kTimeout);
  }
}

torch::Tensor numbers(int rank, int64_t numel, torch::Dtype dtype) {
  return (torch::arange(numel) * 5 + rank * 7).to(dtype);
}

template <class E, class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "no such error";
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

int64_t sum_of_ranks(const ProcessGroup& group) {
  auto tensor = torch::full({3}, group.rank() + 1);
  all_reduce(tensor, group).wait();
  return tensor[2].item<int64_t>();
}

TEST(Distributed, RingsOfMessagesReachTheirNeighbours) {
  for_each_group([](const ProcessGroup& group) {
    if (group.size() == 1) return;
    const int next = (group.rank() + 1) % group.size();
    const int last = (group.rank() + group.size() - 1) % group.size();
    auto received = torch::zeros({4}, torch::kInt16);
    auto works = batch_isend_irecv(
        {{Direction::send, numbers(group.rank(), 4, torch::kInt16), next, 7},
         {Direction::receive, received, last, 7}},
        group);
    for (Work& work : works) work.wait();
    EXPECT_TRUE(torch::equal(received, numbers(last, 4, torch::kInt16)));
  });
}

TEST(Distributed, MessagesMeetByTagAndAnySourceIsTold) {
  run_ranks(
      3,
      [](const World& world) {
        const auto group = new_group(world);
        if (group.rank() > 0) {
          Work second = isend(torch::full({2}, group.rank()), 0, group, 2);
          send(torch::full({2}, 10 * group.rank()), 0, group, 1);
          second.wait();
          return;
        }
        std::set<int> sources;
        for (int i = 0; i < 2; ++i) {
          auto tensor = torch::zeros({2}, torch::kInt64);
          const int source = recv(tensor, kAnySource, group, 1);
          EXPECT_EQ(tensor[1].item<int64_t>(), 10 * source);
          EXPECT_EQ(recv(tensor, source, group, 2), source);
          EXPECT_EQ(tensor[1].item<int64_t>(), source);
          sources.insert(source);
        }
        EXPECT_EQ(sources, (std::set<int>{1, 2}));
      },
      kTimeout);
}

TEST(Distributed, ObjectsKeepTheirBytes) {
  for_each_group([](const ProcessGroup& group) {
    const auto object_of = [](int rank) {
      return std::string(static_cast<size_t>(rank) * 1000, 'x') +
             std::string("\0end", rank == 0 ? 0 : 4);
    };
    std::vector<std::string> all;
    for (int r = 0; r < group.size(); ++r) all.push_back(object_of(r));
    const bool is_root = group.rank() == group.size() - 1;
    const int root = group.size() - 1;
    const std::vector<std::string> none;
    EXPECT_EQ(all_gather_object(object_of(group.rank()), group), all);
    EXPECT_EQ(gather_object(object_of(group.rank()), root, group),
              is_root ? all : none);
    EXPECT_EQ(scatter_object_list(is_root ? all : none, root, group),
              object_of(group.rank()));
    auto list = is_root ? all : std::vector<std::string>{"old"};
    broadcast_object_list(list, root, group);
    EXPECT_EQ(list, all);
    if (group.size() == 1) return;
    if (group.rank() == 0) send_object_list(all, 1, group);
    if (group.rank() == 1) {
      EXPECT_EQ(recv_object_list(0, group), all);
    }
  });
}

TEST(Distributed, NothingIsRecordedForAutograd) {
  for_each_group([](const ProcessGroup& group) {
    auto parameter = torch::ones({3}, torch::requires_grad());
    all_reduce(parameter, group, ReduceOp::avg).wait();
    EXPECT_TRUE(parameter.is_leaf());
    EXPECT_TRUE(torch::equal(parameter, torch::ones({3})));
    EXPECT_EQ(parameter._version(), 0);
  });
}

TEST(Distributed, WorksOverlapAndTellWhenTheyAreDone) {
  for_each_group([](const ProcessGroup& group) {
    Tensors tensors;
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(torch::full({1000}, i + group.rank()));
      works.push_back(all_reduce(tensors.back(), group));
    }
    const int64_t ranks = group.size() * (group.size() - 1) / 2;
    for (int i = 19; i >= 0; --i) {
      works[i].wait(10s);
      works[i].wait();
      EXPECT_TRUE(works[i].is_completed() && works[i].is_success());
      EXPECT_EQ(works[i].exception(), nullptr);
      EXPECT_EQ(tensors[i][999].item<int64_t>(), i * group.size() + ranks);
    }
    EXPECT_THROW(static_cast<void>(works[0].source_rank()), InvalidState);
    barrier(group).wait();
    monitored_barrier(group);
  });
}

TEST(Distributed, AWorkThatIsDroppedIsWaitedFor) {
  run_ranks(
      2,
      [](const World& world) {
        const auto group = new_group(world);
        auto tensor = torch::ones({100000});
        all_reduce(tensor, group);
        EXPECT_EQ(tensor.sum().item<double>(), 200000);
      },
      kTimeout);
}

void use_store(const Store& store) {
  store.set("a", std::string("1\0002", 3));
  EXPECT_EQ(store.get("a"), std::string("1\0002", 3));
  EXPECT_EQ(store.add("count", 2) + store.add("count", 3), 7);
  EXPECT_EQ(store.compare_set("b", "", "first"), "first");
  EXPECT_EQ(store.compare_set("b", "other", "second"), "first");
  EXPECT_EQ(store.compare_set("b", "first", "second"), "second");
  EXPECT_TRUE(store.check({"a", "b"}));
  EXPECT_FALSE(store.check({"a", "c"}));
  store.wait({"a", "b"});
  const std::string message = message_of<CommError>([&] {
    store.wait({"a", "c"}, 50ms);
  });
  EXPECT_TRUE(contains(message, "'c'")) << message;
  const Store part = prefix_store("part", store);
  part.set("a", "mine");
  EXPECT_EQ(part.get("a"), "mine");
  EXPECT_EQ(store.get("a").size(), 3);
  EXPECT_TRUE(store.delete_key("a"));
  EXPECT_FALSE(store.check({"a"}));
  EXPECT_GE(store.num_keys(), 2);
}

TEST(Stores, OfEachClassKeepValues) {
  use_store(hash_store());
  const auto path = std::filesystem::temp_directory_path() /
                    str("tessera_store_", ::getpid());
  use_store(file_store(path, 1));
  std::filesystem::remove(path);
  const Store server = tcp_store({.port = 0, .role = StoreRole::server});
  use_store(server);
  const Store client =
      tcp_store({.port = tcp_store_port(server), .timeout = 5s});
  server.set("from", "server");
  EXPECT_EQ(client.get("from"), "server");
}

TEST(Stores, RefuseWhatTheyCannotDo) {
  EXPECT_THROW(Store().set("a", "b"), InvalidState);
  EXPECT_THROW(static_cast<void>(prefix_store("p", Store())), InvalidArgument);
  EXPECT_THROW(static_cast<void>(file_store("", 1)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(tcp_store_port(hash_store())),
               InvalidArgument);
  EXPECT_THROW(static_cast<void>(tcp_store({.port = 0})), InvalidArgument);
  const Store server = tcp_store({.port = 0, .role = StoreRole::server});
  const int port = tcp_store_port(server);
  const std::string message = message_of<CommError>([&] {
    static_cast<void>(tcp_store({.port = port, .role = StoreRole::server}));
  });
  EXPECT_TRUE(contains(message, str("port ", port))) << message;
}

TEST(Stores, CanBeGivenToInitDistributed) {
  environment::disable_flight_recorder();
  const Store store = hash_store();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&store, rank] {
      const World world = init_distributed({.store = store,
                                            .rank = rank,
                                            .world_size = 2,
                                            .backend = CommBackend::gloo,
                                            .timeout = kTimeout});
      EXPECT_EQ(world.rank(), rank);
      EXPECT_EQ(sum_of_ranks(new_group(world)), 3);
    });
  }
  for (std::thread& thread : ranks) thread.join();
}

TEST(InitOptions, ThatContradictEachOtherAreRefused) {
  const std::vector<std::pair<std::string, InitOptions>> cases = {
      {"give one of them", {.init_method = "file:///x", .store = hash_store()}},
      {"world size unset", {.store = hash_store(), .rank = 0}},
      {"rank 2", {.init_method = "file:///x?rank=2&world_size=2"}},
      {"NCCL was asked for",
       {.device = c10::kCPU, .backend = CommBackend::nccl}},
      {"Gloo was asked for",
       {.device = c10::Device(c10::kCUDA, 0), .backend = CommBackend::gloo}},
      {"cuda with an index", {.device = c10::kCUDA}},
      {"copy_engines",
       {.backend = CommBackend::gloo, .transport = Transport::copy_engines}},
      {"RANK is 3", {.init_method = "tcp://127.0.0.1:1?rank=3&world_size=2"}}};
  for (const auto& [part, options] : cases) {
    const std::string message = message_of<InvalidArgument>(
        [&] { static_cast<void>(init_distributed(options)); });
    EXPECT_TRUE(contains(message, part)) << message;
  }
}

}  // namespace
}  // namespace tessera::distributed
