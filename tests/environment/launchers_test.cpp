// Which launcher wins, and what is refused, for launchers other than torchrun.
#include <gtest/gtest.h>

#include <set>

#include "tessera/base/error.h"
#include "tessera/comm/launch.h"

namespace tessera {
namespace {

using environment::Launch;
using environment::LaunchPlace;

std::string refusal(const Launch& launch) {
  try {
    (void)find_job(launch);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

Launch open_mpi() {
  Launch launch;
  launch.open_mpi = {1, 4, 1, 4};
  launch.mpi_job = "451674113";
  return launch;
}

Launch srun() {
  Launch launch;
  launch.slurm.place = {5, 8, 1, {}};
  launch.slurm.job_id = 1234;
  launch.slurm.step_id = 0;
  launch.slurm.num_nodes = 2;
  launch.slurm.nodes = "gpu[07-08]";
  return launch;
}

Launch worker_of_ray() {
  Launch launch;
  launch.rank = 3;
  launch.world_size = 4;
  launch.local_rank = 1;
  launch.master_addr = "10.0.0.5";
  launch.master_port = 41234;
  return launch;
}

TEST(FindJob, TakesOpenMpiOnOneMachineWithoutAnyOtherVariable) {
  const Job job = find_job(open_mpi());
  EXPECT_EQ(job.source, "Open MPI");
  EXPECT_EQ(job.because,
            "OMPI_COMM_WORLD_RANK 1, OMPI_COMM_WORLD_SIZE 4, "
            "OMPI_COMM_WORLD_LOCAL_RANK 1");
  EXPECT_EQ(job.rank, 1);
  EXPECT_EQ(job.world_size, 4);
  EXPECT_EQ(job.local_rank, 1);
  EXPECT_EQ(job.master_addr, "127.0.0.1");
  EXPECT_FALSE(job.agent_hosts_store);
}

TEST(FindJob, GivesJobsOfDifferentNamesDifferentPortsThatSystemsDoNotHandOut) {
  std::set<int> ports;
  Launch launch = open_mpi();
  for (const char* name : {"1", "2", "3", "4", "5"}) {
    launch.mpi_job = name;
    const int port = find_job(launch).master_port;
    EXPECT_GE(port, 10'000);
    EXPECT_LT(port, 30'000);
    ports.insert(port);
  }
  EXPECT_EQ(ports.size(), 5U);
}

TEST(FindJob, TakesTheOtherMpiLaunchersByTheirNames) {
  Launch launch;
  launch.mpich = {0, 2, 0, 2};
  EXPECT_EQ(find_job(launch).source, "MPICH");
  EXPECT_EQ(find_job(launch).master_port, 29500);
  launch = {};
  launch.mvapich = {0, 2, 0, 2};
  EXPECT_EQ(find_job(launch).source, "MVAPICH2");
  launch = {};
  launch.jsrun = {1, 2, 0, {}};
  launch.master_addr = "node-0";
  launch.master_port = 4000;
  const Job job = find_job(launch);
  EXPECT_EQ(job.source, "jsrun");
  EXPECT_EQ(job.master_addr, "node-0");
  EXPECT_EQ(job.master_port, 4000);
}

TEST(FindJob, AsksForTheHostOfRankZeroWhenMpiSpansMachines) {
  Launch launch = open_mpi();
  launch.open_mpi.local_size = 2;
  EXPECT_TRUE(contains(refusal(launch),
                       "MASTER_ADDR is unset, and the 4 ranks"
                       " of Open MPI are on several machines"))
      << refusal(launch);
  launch.master_addr = "node-0";
  EXPECT_EQ(find_job(launch).master_addr, "node-0");
}

TEST(FindJob, MeetsOnTheFirstHostOfASlurmStep) {
  const Job job = find_job(srun());
  EXPECT_EQ(job.source, "Slurm");
  EXPECT_EQ(job.rank, 5);
  EXPECT_EQ(job.world_size, 8);
  EXPECT_EQ(job.local_rank, 1);
  EXPECT_EQ(job.master_addr, "gpu07");
  Launch next_step = srun();
  next_step.slurm.step_id = 1;
  EXPECT_NE(find_job(next_step).master_port, job.master_port);
  Launch one_node = srun();
  one_node.slurm.num_nodes = 1;
  EXPECT_EQ(find_job(one_node).master_addr, "127.0.0.1");
  Launch told = srun();
  told.master_addr = "10.0.0.7";
  told.master_port = 2000;
  EXPECT_EQ(find_job(told).master_addr, "10.0.0.7");
  EXPECT_EQ(find_job(told).master_port, 2000);
}

TEST(FindJob, RefusesATaskThatSrunDidNotStart) {
  Launch launch = srun();
  launch.slurm.step_id.reset();
  EXPECT_TRUE(contains(refusal(launch), "srun did not start this process"));
  launch.slurm.place.size = 1;  // a batch script of one task
  EXPECT_EQ(find_job(launch).source, "one process");
  launch.slurm.place = {{}, 8, {}, {}};  // the shell of salloc
  EXPECT_EQ(find_job(launch).source, "one process");
}

TEST(FindJob, PutsTheInnerLauncherBeforeTheOuter) {
  Launch launch = srun();
  launch.open_mpi = {1, 4, 1, 4};  // mpirun within a Slurm step
  EXPECT_EQ(find_job(launch).source, "Open MPI");
  launch.rank = 2;  // tessera run within mpirun
  launch.world_size = 3;
  launch.local_rank = 2;
  launch.master_addr = "127.0.0.1";
  launch.master_port = 4000;
  EXPECT_EQ(find_job(launch).source, "RANK and WORLD_SIZE");
  EXPECT_EQ(find_job(launch).world_size, 3);
  launch.run_id = "run";
  EXPECT_EQ(find_job(launch).source, "torchrun");
}

TEST(FindJob, TakesTheLocalRankFromTheLauncherThatAgreesWithRank) {
  Launch launch = open_mpi();
  launch.rank = 1;
  launch.world_size = 4;
  launch.master_addr = "node-0";
  launch.master_port = 4000;
  EXPECT_EQ(find_job(launch).local_rank, 1);
  launch.open_mpi = {};
  EXPECT_EQ(find_job(launch).local_rank, std::nullopt);
  launch.slurm.place = {1, 4, 0, {}};
  EXPECT_EQ(find_job(launch).local_rank, 0);
  launch.slurm.place = {0, 1, 0, {}};  // a shell of another size
  EXPECT_EQ(find_job(launch).local_rank, std::nullopt);
}

TEST(FindJob, RefusesTwoLaunchersThatSpeakOfDifferentRanks) {
  Launch launch = open_mpi();
  launch.mpich = {1, 4, {}, {}};
  EXPECT_EQ(find_job(launch).source, "Open MPI") << "they agree";
  launch.mpich = {0, 2, {}, {}};
  EXPECT_TRUE(contains(refusal(launch),
                       "speaks of two jobs: "
                       "OMPI_COMM_WORLD_RANK 1"))
      << refusal(launch);
  EXPECT_TRUE(contains(refusal(launch), "PMI_RANK 0, PMI_SIZE 2 (MPICH)"));
  launch = open_mpi();
  launch.rank = 0;
  launch.world_size = 2;
  EXPECT_TRUE(contains(refusal(launch), "RANK 0, WORLD_SIZE 2"));
  launch = open_mpi();
  launch.world_size = 8;  // exported by the script around mpirun
  EXPECT_TRUE(contains(refusal(launch), "WORLD_SIZE 8"));
  launch.world_size = 4;
  EXPECT_EQ(find_job(launch).source, "Open MPI");
  launch = srun();
  launch.world_size = 2;
  EXPECT_TRUE(contains(refusal(launch), "WORLD_SIZE 2"));
}

TEST(FindJob, NamesTheHalfThatAnMpiLauncherLeftOut) {
  Launch launch;
  launch.mpich.rank = 1;
  EXPECT_TRUE(contains(refusal(launch), "PMI_SIZE is unset, though PMI_RANK"));
  launch.mpich = {4, 4, {}, {}};
  EXPECT_TRUE(contains(refusal(launch), "PMI_RANK is 4; expected 0 to 3"));
}

TEST(FindJob, TakesTheIndexOfAPodForItsRankWhenTheJobSaysHowManyThereAre) {
  Launch launch;
  launch.completion_index = 2;
  EXPECT_TRUE(contains(refusal(launch), "JOB_COMPLETION_INDEX is 2"));
  EXPECT_TRUE(contains(refusal(launch), "WORLD_SIZE is unset"));
  launch.world_size = 4;
  launch.master_addr = "train-0.train";
  launch.master_port = 29500;
  const Job job = find_job(launch);
  EXPECT_EQ(job.source, "Kubernetes indexed Job");
  EXPECT_EQ(job.rank, 2);
  EXPECT_EQ(job.master_addr, "train-0.train");
  launch.rank = 0;
  launch.world_size = 1;
  EXPECT_EQ(find_job(launch).source, "RANK and WORLD_SIZE");
}

// PyTorchJob: RANK and WORLD_SIZE number pods when each starts several ranks.
TEST(FindJob, RefusesToTakeAPodForAProcess) {
  Launch launch;
  launch.rank = 1;
  launch.world_size = 2;
  launch.master_addr = "job-master-0";
  launch.master_port = 23456;
  launch.processes_per_pod = "8";
  EXPECT_TRUE(contains(refusal(launch), "count pods here, not processes"));
  launch.processes_per_pod = "1";
  EXPECT_EQ(find_job(launch).world_size, 2);
  launch.processes_per_pod = "8";
  launch.local_rank = 0;  // then they number processes
  EXPECT_EQ(find_job(launch).world_size, 2);
}

// Its workers find all but the name of a launcher.
TEST(FindJob, TakesAWorkerOfRayTrainWhereverRayWasStarted) {
  Launch launch = worker_of_ray();
  EXPECT_EQ(find_job(launch).source, "RANK and WORLD_SIZE");
  EXPECT_EQ(find_job(launch).rank, 3);
  EXPECT_EQ(find_job(launch).local_rank, 1);
  EXPECT_EQ(find_job(launch).master_addr, "10.0.0.5");
  launch.completion_index = 1;  // in a pod of an indexed Job
  EXPECT_EQ(find_job(launch).rank, 3);
  launch.processes_per_pod = "8";  // of a training operator
  EXPECT_EQ(find_job(launch).rank, 3);
  launch.slurm = srun().slurm;  // in a step of Slurm
  EXPECT_EQ(find_job(launch).source, "RANK and WORLD_SIZE");
  EXPECT_EQ(find_job(launch).rank, 3);
}

TEST(FindJob, PutsTheVariablesOfALauncherBeforeTheIndexOfAPod) {
  Launch launch = open_mpi();
  launch.completion_index = 3;
  EXPECT_EQ(find_job(launch).source, "Open MPI");
  launch = worker_of_ray();
  launch.completion_index = 0;
  launch.run_id = "job";  // tessera run or torchrun in the pod
  EXPECT_EQ(find_job(launch).source, "torchrun");
  EXPECT_EQ(find_job(launch).rank, 3);
}

TEST(FirstHost, IsTheFirstOfAListAsSlurmWritesIt) {
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("node7,node9"), "node7");
  EXPECT_EQ(first_host("node[01-03,07],x2"), "node01");
  EXPECT_EQ(first_host("node[5,7-9]"), "node5");
  EXPECT_EQ(first_host("rack[2-3]node[08-11]-ib"), "rack2node08-ib");
  EXPECT_EQ(first_host(""), "");
}

}  // namespace
}  // namespace tessera
