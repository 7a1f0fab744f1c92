// A small process that outlives the launcher by a moment, to leave no orphan.
//
// PR_SET_PDEATHSIG ends a rank when the launcher dies, but not what the rank
// itself started (a shell's program, data workers). The guard knows the process
// group of every rank and waits on a pipe whose other end only the launcher
// holds; when the launcher is gone, even by SIGKILL, it kills the groups left.
//
//   rank, before exec ----> +pid ----.
//   launcher, group gone -> -pid ----+--> pipe --> guard --(end of file)-->
//   kill
#pragma once

#include <sys/types.h>

#include "cli/launch/file_descriptor.h"

namespace tessera::launch {

class Guard {
 public:
  /// Starts the guard, in a session of its own and deaf to signals.
  /// Errors: LaunchError when no process can be made.
  Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  /// Lets the guard kill the groups not forgotten and end, and reaps it.
  ~Guard();

  /// Where a rank announces itself by add_to_guard; closed on exec.
  [[nodiscard]] int write_end() const { return write_end_.get(); }
  /// The group of this rank has no process left.
  void forget(pid_t process);

 private:
  FileDescriptor write_end_;
  pid_t process_ = -1;
};

/// For the child between fork and exec: hands its group to the guard.
void add_to_guard(int write_end, pid_t process);

}  // namespace tessera::launch
