// OpTime: what one kind of op took in a step, summed over its layers. Thread: plain values.
#pragma once

#include <string>

namespace warproll {

struct OpTime {
  std::string name;
  double us = 0;
};

}  // namespace warproll
