#include "tessera/comm/reduce_op_name.h"

namespace tessera {

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::product:
      return "product";
    case ReduceOp::band:
      return "band";
    case ReduceOp::bor:
      return "bor";
    case ReduceOp::bxor:
      return "bxor";
    case ReduceOp::premul_sum:
      return "premul_sum";
  }
  return "an unknown operation";
}

}  // namespace tessera
