#include "tessera/module/on_meta.h"

#include "tessera/base/error.h"
#include "tessera/module/gate.h"

namespace tessera {

namespace {
thread_local bool active = false;
}  // namespace

bool in_meta_scope() { return active; }

MetaScope::MetaScope() : guard_((install_gate(), kGateKey)) {
  require<InvalidState>(!active, [] {
    return str("on_meta: this thread is inside another on_meta already; build "
               "the whole model in one.");
  });
  active = true;
}

MetaScope::~MetaScope() { active = false; }

}  // namespace tessera
