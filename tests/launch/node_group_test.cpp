// How nodes agree, on a store in memory and with a clock of the test's own.
#include "cli/launch/node_group.h"

#include <gtest/gtest.h>

#include <map>

#include "cli/launch/launch_error.h"

namespace tessera::launch {
namespace {

using namespace std::chrono_literals;
using Kind = Outcome::Kind;

class MemoryStore : public NodeStore {
 public:
  explicit MemoryStore(std::map<std::string, std::string>& values,
                       bool hosted_here)
      : values_(values), hosted_here_(hosted_here) {}

  [[nodiscard]] bool hosted_here() const override { return hosted_here_; }
  void set(const std::string& key, const std::string& value) override {
    values_[key] = value;
  }
  std::optional<std::string> get(const std::string& key) override {
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }
  int64_t add(const std::string& key, int64_t number) override {
    const int64_t sum = std::stoll(get(key).value_or("0")) + number;
    set(key, std::to_string(sum));
    return sum;
  }
  std::string set_if_absent(const std::string& key,
                            const std::string& value) override {
    return values_.emplace(key, value).first->second;
  }

 private:
  std::map<std::string, std::string>& values_;
  bool hosted_here_;
};

NodeGroupOptions options_of(int num_ranks, int num_nodes = 2) {
  NodeGroupOptions options;
  options.num_nodes = num_nodes;
  options.ranks_per_node = num_ranks;
  options.max_restarts = 1;
  options.join_timeout = 60s;
  options.beat_interval = 1s;
  options.dead_after = 3s;
  return options;
}

class Node {
 public:
  Node(std::map<std::string, std::string>& values, NodeGroupOptions options,
       bool hosts = false)
      : store_(values, hosts),
        options_(std::move(options)),
        group_(store_, options_) {}

  NodeGroup* operator->() { return &group_; }

 private:
  MemoryStore store_;
  NodeGroupOptions options_;
  NodeGroup group_;
};

struct Nodes : testing::Test {
  std::map<std::string, std::string> values;
  NodeGroup::Time now = NodeGroup::Time() + 1h;

  // Both have joined and know it.
  void start(Node& first, Node& second, int round = 0) {
    first->join(round, now);
    second->join(round, now);
    ASSERT_TRUE(first->poll(now)->joined);
    ASSERT_TRUE(second->poll(now)->joined);
  }
};

TEST_F(Nodes, AreNumberedSoThatTheStoresIsTheFirstAndRanksFollowTheNodes) {
  Node guest(values, options_of(3));
  Node host(values, options_of(2), true);
  guest->join(0, now);
  EXPECT_FALSE(guest->poll(now).has_value());
  host->join(0, now);
  const auto of_host = host->poll(now);
  const auto of_guest = guest->poll(now);
  ASSERT_TRUE(of_host && of_host->joined && of_guest && of_guest->joined);
  EXPECT_EQ(of_host->joined->node_rank, 0);
  EXPECT_EQ(of_host->joined->first_rank, 0);
  EXPECT_EQ(of_guest->joined->node_rank, 1);
  EXPECT_EQ(of_guest->joined->first_rank, 2);
  EXPECT_EQ(of_guest->joined->world_size, 5);
}

TEST_F(Nodes, KeepTheRankThatTheyAskFor) {
  NodeGroupOptions second = options_of(1);
  second.node_rank = 1;
  NodeGroupOptions first = options_of(1);
  first.node_rank = 0;
  Node host(values, second, true);
  Node guest(values, first);
  host->join(0, now);
  guest->join(0, now);
  EXPECT_EQ(host->poll(now)->joined->node_rank, 1);
  EXPECT_EQ(guest->poll(now)->joined->node_rank, 0);
}

TEST_F(Nodes, RefuseASecondOfOneRank) {
  NodeGroupOptions options = options_of(1);
  options.node_rank = 0;
  options.max_restarts = 0;
  Node first(values, options);
  Node second(values, options);
  first->join(0, now);
  second->join(0, now);
  const auto event = second->poll(now);
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->outcome.exit_code, kExitNotMet);
  EXPECT_NE(event->outcome.text.find("another launcher has --node-rank 0"),
            std::string::npos);
}

TEST_F(Nodes, RefuseEachOtherWhenTheyDoNotFitTogether) {
  Node first(values, options_of(1));
  NodeGroupOptions other = options_of(1);
  other.max_restarts = 5;
  Node second(values, other);
  first->join(0, now);
  second->join(0, now);
  EXPECT_FALSE(first->poll(now).has_value());
  for (Node* node : {&first, &second}) {
    const auto event = (*node)->poll(now);
    ASSERT_TRUE(event.has_value());
    EXPECT_EQ(event->outcome.kind, Kind::not_met);
    EXPECT_NE(event->outcome.text.find("--max-restarts 5"), std::string::npos)
        << event->outcome.text;
  }
}

TEST_F(Nodes, NameTheOneThatNeverCame) {
  Node node(values, options_of(1, 3), true);
  node->join(0, now);
  now += 61s;
  EXPECT_FALSE(node->poll(now).has_value());
  const auto event = node->poll(now);
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->outcome.kind, Kind::not_met);
  EXPECT_NE(event->outcome.text.find("missing: node 1, 2"), std::string::npos)
      << event->outcome.text;
}

TEST_F(Nodes, EndWhenAllAreDone) {
  Node first(values, options_of(1), true);
  Node second(values, options_of(1));
  start(first, second);
  first->say_done();
  first->say_done();  // counts once
  EXPECT_FALSE(first->poll(now).has_value());
  second->say_done();
  EXPECT_EQ(first->poll(now)->outcome.kind, Kind::done);
  EXPECT_EQ(second->poll(now)->outcome.kind, Kind::done);
}

TEST_F(Nodes, AllTakeTheFirstFailureForTheCause) {
  Node first(values, options_of(1), true);
  Node second(values, options_of(1));
  start(first, second);
  second->say_over({Kind::failed, 3, 0, "rank 1 failed"});
  first->say_over({Kind::failed, 9, 0, "rank 0 failed"});
  for (Node* node : {&first, &second}) {
    const auto event = (*node)->poll(now);
    EXPECT_EQ(event->outcome.exit_code, 3);
    EXPECT_EQ(event->outcome.text, "rank 1 failed");
  }
}

TEST_F(Nodes, TellOfTheStartBeforeAnEndThatCameSooner) {
  Node first(values, options_of(1), true);
  Node second(values, options_of(1));
  first->join(0, now);
  second->join(0, now);
  EXPECT_TRUE(second->poll(now)->joined);
  second->say_over({Kind::failed, 3, 0, "rank 1 failed"});
  EXPECT_TRUE(first->poll(now)->joined);
  EXPECT_EQ(first->poll(now)->outcome.exit_code, 3);
}

TEST_F(Nodes, MissTheOneThatFallsSilent) {
  Node first(values, options_of(1), true);
  Node second(values, options_of(1));
  start(first, second);
  for (int i = 0; i < 10; ++i) {
    now += 1s;
    EXPECT_FALSE(first->poll(now).has_value());
    EXPECT_FALSE(second->poll(now).has_value());
  }
  std::optional<NodeEvent> event;
  for (int i = 0; i < 8 && !event; ++i) {
    now += 1s;
    event = first->poll(now);
  }
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->outcome.kind, Kind::node_lost);
  EXPECT_EQ(event->outcome.exit_code, kExitNodeLost);
  EXPECT_TRUE(event->outcome.may_restart());
}

TEST_F(Nodes, MeetAgainInTheNextRoundWithTheSameRanks) {
  Node first(values, options_of(1), true);
  Node second(values, options_of(1));
  start(first, second);
  first->say_over({Kind::failed, 3, 0, "rank 0 failed"});
  EXPECT_TRUE(first->poll(now).has_value());
  EXPECT_TRUE(second->poll(now).has_value());
  second->join(1, now);
  first->join(1, now);
  const auto place = second->poll(now)->joined;
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->round, 1);
  EXPECT_EQ(place->node_rank, 1);
  EXPECT_EQ(first->poll(now)->joined->node_rank, 0);
  EXPECT_FALSE(first->poll(now).has_value()) << "the old failure is past";
}

TEST_F(Nodes, TakeANewLauncherInPlaceOfALostOne) {
  Node first(values, options_of(1), true);
  Node second(values, options_of(1));
  start(first, second);
  Node third(values, options_of(1));
  third->join(0, now);  // before anybody has missed the second
  EXPECT_FALSE(third->poll(now).has_value());
  std::optional<NodeEvent> event;
  while (!event) {
    now += 500ms;
    event = first->poll(now);
  }
  first->join(1, now);
  EXPECT_FALSE(third->poll(now).has_value());  // moves to the next round
  const auto place = third->poll(now)->joined;
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->round, 1);
  EXPECT_TRUE(first->poll(now)->joined.has_value());
}

TEST_F(Nodes, TurnAwayOneTooMany) {
  Node first(values, options_of(1), true);
  Node second(values, options_of(1));
  start(first, second);
  Node third(values, options_of(1));
  third->join(0, now);
  std::optional<NodeEvent> event;
  for (int i = 0; i < 20 && !event; ++i) {
    now += 1s;
    (void)first->poll(now);
    (void)second->poll(now);
    event = third->poll(now);
  }
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->outcome.kind, Kind::not_met);
  EXPECT_NE(event->outcome.text.find("has all its 2 nodes"), std::string::npos);
}

NodeGroupOptions elastic(int least, int most) {
  NodeGroupOptions options = options_of(2, most);
  options.min_nodes = least;
  options.last_call = 10s;
  return options;
}

TEST_F(Nodes, OfAnElasticJobStartWhenEnoughAreHereAndNobodyElseComes) {
  Node first(values, elastic(1, 3), true);
  Node second(values, elastic(1, 3));
  first->join(0, now);
  EXPECT_FALSE(first->poll(now).has_value());
  second->join(0, now += 9s);
  EXPECT_FALSE(second->poll(now).has_value());
  EXPECT_FALSE(first->poll(now).has_value());
  const auto of_first = first->poll(now += 1s);
  const auto of_second = second->poll(now);
  ASSERT_TRUE(of_first && of_first->joined && of_second && of_second->joined);
  EXPECT_EQ(of_first->joined->num_nodes, 2);
  EXPECT_EQ(of_first->joined->world_size, 4);
  EXPECT_EQ(of_second->joined->node_rank, 1);
  EXPECT_EQ(of_second->joined->first_rank, 2);
}

TEST_F(Nodes, OfAnElasticJobStartAtOnceWhenAllAreHere) {
  Node first(values, elastic(1, 2), true);
  Node second(values, elastic(1, 2));
  start(first, second);
}

TEST_F(Nodes, OfAnElasticJobMeetAnewWhenAnotherComes) {
  Node first(values, elastic(1, 3), true);
  first->join(0, now);
  (void)first->poll(now);
  ASSERT_TRUE(first->poll(now += 10s)->joined);
  Node second(values, elastic(1, 3));
  second->join(0, now);
  EXPECT_FALSE(second->poll(now).has_value());
  const auto event = first->poll(now);
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->outcome.kind, Kind::regrouped);
  EXPECT_TRUE(event->outcome.may_restart());
  EXPECT_FALSE(event->outcome.restart_counts());
  first->join(1, now, 0);
  (void)first->poll(now);
  const auto place = first->poll(now += 10s)->joined;
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->num_nodes, 2);
  EXPECT_EQ(place->round, 1);
  EXPECT_EQ(second->poll(now)->joined->node_rank, 1);
}

TEST_F(Nodes, OfAnElasticJobGoOnWithoutALostOne) {
  Node first(values, elastic(1, 2), true);
  Node second(values, elastic(1, 2));
  start(first, second);
  std::optional<NodeEvent> event;
  while (!event) event = first->poll(now += 500ms);
  EXPECT_EQ(event->outcome.kind, Kind::node_lost);
  first->join(1, now, 1);
  EXPECT_FALSE(first->poll(now).has_value());
  const auto alone = first->poll(now += 10s)->joined;
  ASSERT_TRUE(alone.has_value());
  EXPECT_EQ(alone->num_nodes, 1);
  EXPECT_EQ(alone->world_size, 2);

  // One that comes now learns how many restarts were used up.
  Node third(values, elastic(1, 2));
  third->join(0, now);
  EXPECT_FALSE(third->poll(now).has_value());
  EXPECT_EQ(first->poll(now)->outcome.kind, Kind::regrouped);
  first->join(2, now, 1);
  EXPECT_TRUE(first->poll(now)->joined);
  EXPECT_EQ(third->poll(now)->joined->num_restarts, 1);
}

TEST_F(Nodes, OfAnElasticJobThatEndedTurnAwayWhoComesThen) {
  Node first(values, elastic(1, 2), true);
  first->join(0, now);
  (void)first->poll(now);
  ASSERT_TRUE(first->poll(now += 10s)->joined);
  first->say_done();
  Node second(values, elastic(1, 2));
  second->join(0, now);
  const auto event = second->poll(now);
  ASSERT_TRUE(event.has_value());
  EXPECT_NE(event->outcome.text.find("has ended before"), std::string::npos);
  EXPECT_EQ(first->poll(now)->outcome.kind, Kind::done);
}

TEST_F(Nodes, WithOtherRangesAreRefused) {
  Node first(values, elastic(1, 2), true);
  Node second(values, options_of(2));
  first->join(0, now);
  second->join(0, now);
  EXPECT_FALSE(first->poll(now).has_value());
  const auto event = first->poll(now);
  ASSERT_TRUE(event.has_value());
  EXPECT_NE(event->outcome.text.find("--nnodes 1:2"), std::string::npos)
      << event->outcome.text;
}

TEST_F(Nodes, LeaveTheStoreWhenTheOthersHaveLeftOrDied) {
  Node host(values, options_of(1, 3), true);
  Node second(values, options_of(1, 3));
  Node third(values, options_of(1, 3));
  for (Node* node : {&host, &second, &third}) (*node)->join(0, now);
  for (Node* node : {&host, &second, &third}) (void)(*node)->poll(now);
  EXPECT_FALSE(host->others_have_left(now));
  second->leave();
  EXPECT_FALSE(host->others_have_left(now));
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(host->others_have_left(now += 1s), i == 4);
}

}  // namespace
}  // namespace tessera::launch
