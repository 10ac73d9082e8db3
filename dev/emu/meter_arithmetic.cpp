// Counts the floating-point operations of a basic block. emucc compiles with -fsanitize-coverage=trace-pc: each
// basic block of the program begins with a call of __sanitizer_cov_trace_pc. What a block computes is read from its
// machine code, which objdump prints.
#include "meter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <map>

namespace emu {

static bool begins(const char *text, const char *word) { return strncmp(text, word, strlen(word)) == 0; }
static bool ends(const std::string &text, const char *end) {
    return text.size() >= strlen(end) && text.compare(text.size() - strlen(end), std::string::npos, end) == 0;
}

// The operations of an instruction on floats: 2 for each product of a fused multiply-add.
static uint64_t flops_of(const std::string &name) {
#if defined(__x86_64__)
    const char *stem = name.c_str() + (name[0] == 'v');
    bool fused = begins(stem, "fmadd") || begins(stem, "fmsub") || begins(stem, "fnmadd") || begins(stem, "fnmsub");
    bool plain = false;
    for (const char *operation : {"add", "sub", "mul", "div", "sqrt"}) {
        plain |= begins(stem, operation) && strlen(stem) == strlen(operation) + 2;
    }
    if (!fused && !plain) { return 0; }
    uint64_t lanes = ends(name, "ss") || ends(name, "sd") ? 1 : ends(name, "ps") ? 4 : ends(name, "pd") ? 2 : 0;
    return fused ? 2 * lanes : lanes;
#else
    for (const char *operation : {"fmadd", "fmsub", "fnmadd", "fnmsub"}) {
        if (name == operation) { return 2; }
    }
    for (const char *operation : {"fadd", "fsub", "fmul", "fnmul", "fdiv", "fsqrt"}) {
        if (name == operation) { return 1; }
    }
    return 0;
#endif
}

// callee: "<expf@plt>".
static Arithmetic arithmetic_of_call(const std::string &callee) {
    static const char *const names[] = {"exp", "exp2", "exp10", "expm1", "log",  "log2", "log10", "log1p",
                                        "pow", "sin",  "cos",   "tan",   "tanh", "erf",  "cbrt",  "rsqrt"};
    std::string name = callee.substr(callee.find('<') + 1);
    name = name.substr(0, name.find_first_of("@>+"));
    if (name == "fma" || name == "fmaf") { return {2, 0}; }
    if (name == "sqrt" || name == "sqrtf") { return {1, 0}; }
    for (const char *function : names) {
        if (name == function || name == std::string(function) + "f") { return {0, 1}; }
    }
    return {0, 0};
}

struct Instruction {
    uintptr_t address;
    std::string name, operands;
};

// Reads a line of objdump like "  4011a6:	mulss  %xmm1,%xmm0".
static bool parse_instruction(const char *line, Instruction *instruction) {
    char *end, name[32];
    instruction->address = strtoull(line, &end, 16);
    int length = 0;
    if (end == line || *end != ':' || sscanf(end + 1, " %31s%n", name, &length) != 1) { return false; }
    instruction->name = name;
    instruction->operands = end + 1 + length;
    return true;
}

static bool jumps(const std::string &name) { return name == "jmp" || name == "b"; }
static bool leaves(const std::string &name) {
    return jumps(name) || name == "ret" || name == "ud2" || name == "br" || name == "brk";
}

// Reads the program's instructions, one after another.
struct BlockReader {
    std::map<uintptr_t, Arithmetic> *blocks; // by the address behind the call
    Arithmetic *block = nullptr;             // the instruction belongs to it
    bool begins_block = false;               // the next instruction does
    Arithmetic *jumped = nullptr;            // this block ended in a jump to target
    uintptr_t target = 0;

    void read(const char *line) {
        Instruction i;
        if (!parse_instruction(line, &i)) { return; }
        if (begins_block) { block = &(*blocks)[i.address]; }
        if (jumped != nullptr && i.address == target) { block = jumped; } // clang++ jumps to the next instruction
        jumped = nullptr;
        bool call = begins(i.name.c_str(), "call") || i.name == "bl";
        begins_block = call && i.operands.find("<__sanitizer_cov_trace_pc") != std::string::npos;
        if (begins_block) { block = nullptr; }
        if (block == nullptr) { return; }
        Arithmetic more = call || jumps(i.name) ? arithmetic_of_call(i.operands) : Arithmetic{flops_of(i.name), 0};
        block->flops += more.flops, block->functions += more.functions;
        if (jumps(i.name)) { jumped = block, target = strtoull(i.operands.c_str(), nullptr, 16); }
        if (leaves(i.name)) { block = nullptr; }
    }
};

static std::map<uintptr_t, Arithmetic> read_program() {
    std::map<uintptr_t, Arithmetic> blocks;
    BlockReader reader = {&blocks};
    for_each_instruction([&](const char *line) { reader.read(line); });
    return blocks;
}

Arithmetic arithmetic_of_step(uintptr_t pc) {
    static const std::map<uintptr_t, Arithmetic> *blocks = new std::map<uintptr_t, Arithmetic>(read_program());
    auto found = blocks->find(pc);
    return found == blocks->end() ? Arithmetic() : found->second;
}

} // namespace emu
