// Stand-in, see gloo/algorithm.h.
#pragma once
