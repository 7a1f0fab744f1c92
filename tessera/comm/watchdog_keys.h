// Where in the store the ranks tell each other of a failure; see watchdog.h.
#pragma once

#include <string>

#include "tessera/base/error.h"

namespace tessera {

inline constexpr char kAlarm[] = "failure/alarm";
inline constexpr char kCause[] = "failure/cause";
inline constexpr char kTable[] = "failure/table";
inline constexpr char kReaders[] = "failure/readers";
inline constexpr char kContradiction[] = "failure/contradiction";
inline constexpr char kTableMaker[] = "failure/table_maker";

inline std::string place_key(int rank) { return str("failure/place/", rank); }
inline std::string stall_key(int rank) { return str("failure/stall/", rank); }

}  // namespace tessera
