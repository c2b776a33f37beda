// CUDA C++ on the CPU, for tests: blocks run one after another, the threads of a block in turn.
// A kernel without barriers runs thread by thread. With barriers each thread is a fiber, and a
// barrier hands over to the next one until all of the block, or of the warp, have arrived.
#pragma once
#include <ucontext.h>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>
#define CUDA_ON_CPU
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __shared__ static  // of one block at a time, for blocks run in turn
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
static dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace on_cpu {
constexpr size_t STACK = 64 << 10;
struct Fiber {
    ucontext_t context;
    bool done;
    long arrived[2];  // at barriers: of the block, of the warp
};
static std::vector<Fiber> fibers;
static std::vector<char> stacks;
static ucontext_t scheduler;
static unsigned current;
static std::function<void()> body;
static uint64_t exchanged[1024];
static long moves;

static void hand_over() {
    unsigned me = current;
    swapcontext(&fibers[me].context, &scheduler);
    current = me;
    threadIdx = dim3(me);
}
static void run_fiber() {
    body();
    fibers[current].done = true;
    ++moves;
    swapcontext(&fibers[current].context, &scheduler);
}
static void barrier(int warp) {
    unsigned me = current, count = fibers.size();
    unsigned first = warp ? me / 32 * 32 : 0, last = warp && first + 32 < count ? first + 32 : count;
    long wanted = ++fibers[me].arrived[warp];
    ++moves;
    for (;; hand_over()) {
        bool all = true;
        for (unsigned i = first; i < last && all; i++)
            all = fibers[i].done || fibers[i].arrived[warp] >= wanted;
        if (all) return;
    }
}
static void launch(unsigned blocks, unsigned threads, bool waits, std::function<void()> kernel) {
    gridDim = dim3(blocks);
    blockDim = dim3(threads);
    body = kernel;
    for (unsigned b = 0; b < blocks; b++) {
        blockIdx = dim3(b);
        if (!waits) {
            for (unsigned t = 0; t < threads; t++) {
                threadIdx = dim3(t);
                kernel();
            }
            continue;
        }
        fibers.resize(threads);
        stacks.resize(threads * STACK);
        for (unsigned t = 0; t < threads; t++) {
            Fiber &f = fibers[t];
            f.done = false;
            f.arrived[0] = f.arrived[1] = 0;
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = stacks.data() + t * STACK;
            f.context.uc_stack.ss_size = STACK;
            f.context.uc_link = &scheduler;
            makecontext(&f.context, run_fiber, 0);
        }
        for (bool left = true; left;) {
            long before = moves;
            left = false;
            for (unsigned t = 0; t < threads; t++) {
                if (fibers[t].done) continue;
                current = t;
                threadIdx = dim3(t);
                swapcontext(&scheduler, &fibers[t].context);
                left = left || !fibers[t].done;
            }
            if (left && moves == before) {
                std::fprintf(stderr, "deadlock: some threads do not reach a barrier\n");
                std::abort();
            }
        }
    }
}
template <class T> T shuffle(T value, unsigned lane) {
    unsigned me = current, from = me / 32 * 32 + lane;
    std::memcpy(&exchanged[me], &value, sizeof value);
    barrier(1);
    T found;
    std::memcpy(&found, &exchanged[lane > 31 || from >= fibers.size() ? me : from], sizeof found);
    barrier(1);
    return found;
}
}  // namespace on_cpu

static inline void __syncthreads() { on_cpu::barrier(0); }
static inline void __syncwarp(unsigned = ~0u) { on_cpu::barrier(1); }
template <class T> T __shfl_sync(unsigned, T v, int lane) { return on_cpu::shuffle(v, lane & 31); }
template <class T> T __shfl_xor_sync(unsigned, T v, int mask) {
    return on_cpu::shuffle(v, (on_cpu::current % 32) ^ mask);
}
template <class T> T atomicAdd(T *place, T value) {
    T old = *place;
    *place += value;
    return old;
}
static inline float __int_as_float(int bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
static inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
