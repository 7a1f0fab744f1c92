// Stand-in: LibTorch's wheel ships no Gloo headers, and ProcessGroupGloo.hpp
// needs only the few names of this folder. Seen by tessera/comm/gloo_*.cpp
// alone; never installed, no type of it is made or derived from.
#pragma once
#include <gloo/context.h>
