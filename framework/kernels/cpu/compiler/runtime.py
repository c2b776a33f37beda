"""What compiled kernels take from Numba's runtime, without Numba: memory, and strides of a reshape.

In LLVM's words, linked into the kernels that need them.
"""

from __future__ import annotations

from .fingerprint import of_source

SOURCE = of_source(__file__)  # as it is imported

_MEMORY = """
declare i8* @malloc(i64)
declare void @free(i8*)

; A header of eight words, then the data: where it begins is the header's fourth word.
define i8* @NRT_MemInfo_alloc_aligned(i64 %size, i32 %align) {
  %a = zext i32 %align to i64
  %more = add i64 %a, 64
  %all = add i64 %size, %more
  %block = call i8* @malloc(i64 %all)
  %none = icmp eq i8* %block, null
  br i1 %none, label %end, label %made
made:
  %header = bitcast i8* %block to i64*
  store i64 1, i64* %header
  %first = ptrtoint i8* %block to i64
  %after = add i64 %first, %more
  %rest = urem i64 %after, %a
  %start = sub i64 %after, %rest
  %place = getelementptr i64, i64* %header, i64 3
  store i64 %start, i64* %place
  %where = getelementptr i64, i64* %header, i64 4
  store i64 %size, i64* %where
  br label %end
end:
  ret i8* %block
}

define i8* @NRT_MemInfo_alloc_safe_aligned(i64 %size, i32 %align) {
  %block = call i8* @NRT_MemInfo_alloc_aligned(i64 %size, i32 %align)
  ret i8* %block
}

define void @NRT_MemInfo_call_dtor(i8* %block) {
  call void @free(i8* %block)
  ret void
}

define i8* @NRT_Allocate(i64 %size) {
  %block = call i8* @malloc(i64 %size)
  ret i8* %block
}

define void @NRT_Free(i8* %block) {
  call void @free(i8* %block)
  ret void
}
"""

_RESHAPE = """
; 1 and the strides of the new shape if the array has no gaps, else 0: kernels copy nothing.
define i32 @numba_attempt_nocopy_reshape(i64 %nd, i64* %dims, i64* %strides, i64 %newnd,
                                         i64* %newdims, i64* %newstrides, i64 %size, i32 %order) {
first:
  br label %count
count:
  %k = phi i64 [%nd, %first], [%d, %counted]
  %all = phi i64 [1, %first], [%more, %counted]
  %left = icmp sgt i64 %k, 0
  br i1 %left, label %counted, label %whole
counted:
  %d = sub i64 %k, 1
  %np = getelementptr i64, i64* %dims, i64 %d
  %n = load i64, i64* %np
  %more = mul i64 %all, %n
  br label %count
whole:
  %empty = icmp eq i64 %all, 0
  br i1 %empty, label %write, label %check
check:
  %j = phi i64 [%nd, %whole], [%e, %next]
  %step = phi i64 [%size, %whole], [%step2, %next]
  %unseen = icmp sgt i64 %j, 0
  br i1 %unseen, label %look, label %write
look:
  %e = sub i64 %j, 1
  %mp = getelementptr i64, i64* %dims, i64 %e
  %m = load i64, i64* %mp
  %sp = getelementptr i64, i64* %strides, i64 %e
  %s = load i64, i64* %sp
  %one = icmp eq i64 %m, 1
  %same = icmp eq i64 %s, %step
  %fits = or i1 %one, %same
  br i1 %fits, label %next, label %no
next:
  %step2 = mul i64 %step, %m
  br label %check
no:
  ret i32 0
write:
  %i = phi i64 [%newnd, %whole], [%newnd, %check], [%f, %written]
  %t = phi i64 [%size, %whole], [%size, %check], [%t2, %written]
  %todo = icmp sgt i64 %i, 0
  br i1 %todo, label %written, label %end
written:
  %f = sub i64 %i, 1
  %qp = getelementptr i64, i64* %newdims, i64 %f
  %q = load i64, i64* %qp
  %to = getelementptr i64, i64* %newstrides, i64 %f
  store i64 %t, i64* %to
  %t2 = mul i64 %t, %q
  br label %write
end:
  ret i32 1
}
"""

FUNCTIONS = {
    "NRT_MemInfo_alloc_aligned": _MEMORY,
    "NRT_MemInfo_alloc_safe_aligned": _MEMORY,
    "NRT_MemInfo_call_dtor": _MEMORY,
    "NRT_Allocate": _MEMORY,
    "NRT_Free": _MEMORY,
    "numba_attempt_nocopy_reshape": _RESHAPE,
}
"""Name of each function: the text that has it."""
