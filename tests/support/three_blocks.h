// Three blocks in a row, each a unit, without a head.
#pragma once

#include "tests/support/net.h"

namespace tessera::test {

struct ThreeImpl : nn::Module {
  Block a{nullptr}, b{nullptr}, c{nullptr};
  ThreeImpl() {
    a = register_module("a", Block(6, 8));
    b = register_module("b", Block(8, 8));
    c = register_module("c", Block(8, 8));
  }
};

}  // namespace tessera::test
