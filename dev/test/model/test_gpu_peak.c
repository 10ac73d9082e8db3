// Unit tests of the datasheets' figures: devices as the CUDA runtime names them and short names.
#include "llmc/model/gpu_peak.h"
#include "dev/test/test.h"

TEST(test_peaks) {
    static const struct {
        const char *name;
        double bf16, tf32, fp32, fp8;
    } cases[] = {
        {"NVIDIA A100-SXM4-80GB", 312.0, 156.0, 19.5, 0.0},
        {"A100-PCIE-40GB", 312.0, 156.0, 19.5, 0.0}, // as older drivers name it
        {"NVIDIA H100 80GB HBM3", 989.4, 494.7, 66.9, 1978.9},
        {"NVIDIA H100 PCIe", 756.0, 378.0, 51.0, 1513.0},
        {"NVIDIA H200", 989.4, 494.7, 66.9, 1978.9},
        {"NVIDIA L4", 121.0, 60.0, 30.3, 242.0},
        {"NVIDIA GeForce RTX 4090", 165.2, 82.6, 82.6, 330.3},
        {"NVIDIA GeForce RTX 4090 Laptop GPU", 0.0, 0.0, 0.0, 0.0},
        {"NVIDIA A10G", 0.0, 0.0, 0.0, 0.0},
        {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0.0, 0.0, 0.0, 0.0},
        {"", 0.0, 0.0, 0.0, 0.0},
    };
    FOR_EACH(i, cases) {
        const char *name = cases[i].name;
        const double want[NUM_GPU_PRECISIONS] = {cases[i].bf16, cases[i].tf32, cases[i].fp32, cases[i].fp8};
        for (int p = 0; p < NUM_GPU_PRECISIONS; p++) {
            double got = gpu_peak_tflops(name, (GpuPrecision)p);
            CHECK(t, got == want[p], "%s, precision %d: %g, expected %g", name, p, got, want[p]);
        }
    }
}

// The row of each device and of each short name is the one that begins so.
TEST(test_rows) {
    static const struct {
        const char *name, *option;
    } cases[] = {{"NVIDIA A100-SXM4-40GB", "a100-40gb"},
                 {"A100-PCIE-40GB", "a100-40gb"},
                 {"NVIDIA A100 80GB PCIe", "a100"},
                 {"NVIDIA H100 80GB HBM3", "h100"},
                 {"NVIDIA A40", ""}};
    FOR_EACH(i, cases) {
        const GpuPeak *peak = gpu_peak_of_device(cases[i].name);
        CHECK(t, peak != NULL && strcmp(peak->option, cases[i].option) == 0, "%s is %s, expected %s", cases[i].name,
              peak != NULL ? peak->option : "unknown", cases[i].option);
    }
    CHECK(t, gpu_peak_of_device("a100-40gb")->gigabytes_per_second == 1555.0, "the memory of an A100 of 80 GB");
    CHECK(t, gpu_peak_of_device("tpu") == NULL && gpu_peak_of_device("a10*") == NULL, "unknown names are known");
}
