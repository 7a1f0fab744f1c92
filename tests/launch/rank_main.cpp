// A rank for the port test: meets its peers at MASTER_ADDR:MASTER_PORT as
// LibTorch's store does. Rank 0 listens with SO_REUSEADDR; every other rank
// sends the id of its job. Exit code 1: no port; 2: somebody of another job
// came.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

sockaddr_in address(in_addr_t host) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_addr.s_addr = htonl(host);
  result.sin_port =
      htons(static_cast<uint16_t>(std::stoi(variable("MASTER_PORT"))));
  return result;
}

int fail(int code, const std::string& what) {
  std::cerr << what << ": " << std::strerror(errno) << "\n";
  return code;
}

int serve(int num_peers, const std::string& job) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  const int one = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  const sockaddr_in any = address(INADDR_ANY);
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&any), sizeof(any)) ||
      ::listen(listener, 64)) {
    return fail(1, "no port");
  }
  for (int i = 0; i < num_peers; ++i) {
    const int peer = ::accept(listener, nullptr, nullptr);
    std::string sent(job.size() + 1, '\0');
    const ssize_t num_bytes = ::recv(peer, sent.data(), sent.size(), 0);
    sent.resize(num_bytes > 0 ? static_cast<size_t>(num_bytes) : 0);
    if (sent != job) return fail(2, "expected " + job + ", got " + sent);
    ::close(peer);
  }
  return 0;
}

int visit(const std::string& job) {
  const sockaddr_in master = address(INADDR_LOOPBACK);
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(50);
  while (std::chrono::steady_clock::now() < deadline) {
    const int peer = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(peer, reinterpret_cast<const sockaddr*>(&master),
                  sizeof(master)) == 0) {
      const ssize_t sent = ::send(peer, job.data(), job.size(), 0);
      ::close(peer);
      return sent == static_cast<ssize_t>(job.size()) ? 0 : 1;
    }
    ::close(peer);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return fail(1, "nobody listens");
}

}  // namespace

int main() {
  const std::string job = variable("TORCHELASTIC_RUN_ID");
  if (variable("RANK") != "0") return visit(job);
  return serve(std::stoi(variable("WORLD_SIZE")) - 1, job);
}
