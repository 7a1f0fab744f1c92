// The smallest program that links Tessera.
#include <iostream>

#include "tessera/base/version.h"

int main() { std::cout << "consumer: Tessera " << tessera::version() << "\n"; }
