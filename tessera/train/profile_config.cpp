#include "tessera/train/profile_config.h"

#include <charconv>
#include <string>

#include "tessera/base/error.h"

namespace tessera::train {

void read_profile(ConfigReader& reader, ProfileConfig& profile) {
  std::string steps;
  reader.get("profile.steps", steps);
  reader.get("profile.memory", profile.memory);
  require<InvalidArgument>(!profile.memory || !steps.empty(), [&] {
    return str(reader.where("profile.memory"),
               ": profile.memory is set, but not profile.steps, which says of "
               "which steps; give them as in \"10:13\".");
  });
  if (steps.empty()) return;
  const char* end = steps.data() + steps.size();
  const auto first = std::from_chars(steps.data(), end, profile.first);
  const bool colon =
      first.ec == std::errc() && first.ptr != end && *first.ptr == ':';
  const auto last =
      std::from_chars(colon ? first.ptr + 1 : end, end, profile.last);
  require<InvalidArgument>(
      colon && last.ec == std::errc() && last.ptr == end &&
          profile.first >= 1 && profile.first <= profile.last,
      [&] {
        return str(reader.where("profile.steps"), ": profile.steps is \"",
                   steps,
                   "\"; give the first and the last step, as in \"10:13\".");
      });
}

}  // namespace tessera::train
