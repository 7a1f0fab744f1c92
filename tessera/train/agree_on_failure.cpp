#include "tessera/train/agree_on_failure.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

/// "<code> <message>", or "" when `body` returns.
std::string failure_of(const std::function<void()>& body) {
  const auto pack = [](ExitCode code, const char* what) {
    return str(static_cast<int>(code), " ", what);
  };
  try {
    body();
    return "";
  } catch (const Failure& error) {
    return pack(error.code(), error.what());
  } catch (const InvalidArgument& error) {
    return pack(ExitCode::wrong_config, error.what());
  } catch (const std::exception& error) {
    return pack(ExitCode::failed, error.what());
  }
}

}  // namespace

void agree_on_failure(const World& world, const std::function<void()>& body) {
  const std::vector<std::string> all = world.exchange(
      str("agree_on_failure/", world.next_id()), failure_of(body));
  const auto first =
      std::ranges::find_if(all, [](const auto& each) { return !each.empty(); });
  if (first == all.end()) return;
  const bool alike = std::ranges::all_of(
      all, [&](const auto& each) { return each == *first; });
  const size_t space = first->find(' ');
  const auto code = static_cast<ExitCode>(std::stoi(first->substr(0, space)));
  const std::string message = first->substr(space + 1);
  throw AgreedFailure(
      code, alike ? message : str("rank ", first - all.begin(), ": ", message));
}

}  // namespace tessera::train
