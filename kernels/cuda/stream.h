// cudaStream_t for headers that must also be read where there is no CUDA. Same type as CUDA's own.
#pragma once

struct CUstream_st;
using cudaStream_t = CUstream_st*;
