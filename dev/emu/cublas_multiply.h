// The multiplication that cublas.cpp and cublaslt.cpp share. cublaslt.cpp holds it.
#ifndef EMU_CUBLAS_MULTIPLY_H
#define EMU_CUBLAS_MULTIPLY_H

#include "runtime.h"

namespace emu {

// A matrix in memory: element (i, j) of matrix b of the batch is data[b * batch_stride + i * row_stride + j *
// col_stride].
struct Matrix {
    char *data;
    uint32_t type;
    int64_t rows, cols, row_stride, col_stride, batch_stride;
    int batch;
};

Matrix transposed(Matrix x);
size_t size_of_type(uint32_t type); // bytes of an element

// C = alpha A B + beta C inside an operation on a stream, whose accesses it notes. A (m, k), B (k, n), C (m, n).
void multiply_matrices(const char *name, Source at, const Matrix &A, const Matrix &B, const Matrix &C, bool tf32,
                       float alpha, float beta);

} // namespace emu

#endif // EMU_CUBLAS_MULTIPLY_H
