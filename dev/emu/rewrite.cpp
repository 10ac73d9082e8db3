// Translates CUDA's syntax into C++, in preprocessed text from standard input to standard output:
//
//   K<<<grid, block, ...>>>(args)     ->  ::emu::Launch("K", file, line, grid, block, ...).of(K)(args)
//   K<<<...>>>(args), K a template    ->  ::emu::Launch(...).deduce([](auto... a) { K(a...); }, args)
//   cudaLaunchKernel((void *)K, ...   ->  cudaLaunchKernel("K", K, ...
//   blockDim.x                        ->  emu_dim(blockDim).x
//   asm("ld.global.f32 %0, [%1];" ... ->  ::emu::ptx::ld<::emu::ptx::f32>(...), see emu_ptx.h
//   __shared__ T x[N];                ->  a struct with the member x, and a reference to the one of the running block
//   __shared__ T x[M], y[N];          ->  two declarations
//   extern __shared__ T x[];          ->  T *x = the block's dynamic shared memory
//   __device__, __constant__          ->  nothing before functions; before variables, the section of device memory
//   __noinline__                      ->  the attribute; not a macro, because the standard library uses that name
//   #pragma unroll                    ->  an empty line
//
// The text keeps its lines, so messages, debuggers and reports show the original line numbers.
#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <map>
#include <string>
#include <vector>

enum Kind { SPACE, WORD, TEXT, SYMBOL, DIRECTIVE }; // TEXT: numbers, strings and character literals

struct Token {
    Kind kind;
    std::string text;
    bool is(const char *other) const { return kind != TEXT && kind != SPACE && text == other; }
};
typedef std::vector<Token> Tokens;

static std::string read_all(FILE *file) {
    std::string text;
    char buffer[1 << 16];
    for (size_t n; (n = fread(buffer, 1, sizeof(buffer), file)) > 0;) { text.append(buffer, n); }
    return text;
}

// ---- Tokens ----

static bool starts_word(char c) { return isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '$' || (c & 0x80); }
static bool in_word(char c) { return starts_word(c) || isdigit(static_cast<unsigned char>(c)); }

static size_t end_of_quoted(const std::string &s, size_t begin) {
    size_t i = begin + 1;
    while (i < s.size() && s[i] != s[begin] && s[i] != '\n') { i += s[i] == '\\' ? 2 : 1; }
    return i < s.size() ? i + 1 : s.size();
}

static size_t end_of_raw_string(const std::string &s, size_t quote) {
    size_t open = s.find('(', quote);
    if (open == std::string::npos) { return s.size(); }
    std::string close = ")" + s.substr(quote + 1, open - quote - 1) + "\"";
    size_t end = s.find(close, open);
    return end == std::string::npos ? s.size() : end + close.size();
}

static size_t end_of_number(const std::string &s, size_t i) {
    while (i < s.size()) {
        bool sign = (s[i] == '+' || s[i] == '-') && strchr("eEpP", s[i - 1]);
        bool separator = s[i] == '\'' && i + 1 < s.size() && in_word(s[i + 1]);
        if (!in_word(s[i]) && s[i] != '.' && !sign && !separator) { break; }
        i++;
    }
    return i;
}

static size_t end_of_comment(const std::string &s, size_t i) {
    size_t end = s[i + 1] == '/' ? s.find('\n', i) : s.find("*/", i + 2);
    if (end == std::string::npos) { return s.size(); }
    return s[i + 1] == '/' ? end : end + 2;
}

static Token next_token(const std::string &s, size_t *at, bool line_begins) {
    size_t i = *at, end;
    Kind kind;
    if (s[i] == '#' && line_begins) {
        kind = DIRECTIVE, end = s.find('\n', i);
        if (end == std::string::npos) { end = s.size(); }
    } else if (isspace(static_cast<unsigned char>(s[i]))) {
        kind = SPACE, end = i;
        while (end < s.size() && isspace(static_cast<unsigned char>(s[end]))) {
            if (s[end++] == '\n') { break; }
        }
    } else if (s[i] == '/' && i + 1 < s.size() && (s[i + 1] == '/' || s[i + 1] == '*')) {
        kind = SPACE, end = end_of_comment(s, i);
    } else if (starts_word(s[i])) {
        kind = WORD, end = i;
        while (end < s.size() && in_word(s[end])) { end++; }
        std::string prefix = s.substr(i, end - i);
        bool raw = prefix == "R" || prefix == "LR" || prefix == "uR" || prefix == "UR" || prefix == "u8R";
        if (raw && end < s.size() && s[end] == '"') { kind = TEXT, end = end_of_raw_string(s, end); }
    } else if (isdigit(static_cast<unsigned char>(s[i])) ||
               (s[i] == '.' && i + 1 < s.size() && isdigit(static_cast<unsigned char>(s[i + 1])))) {
        kind = TEXT, end = end_of_number(s, i);
    } else if (s[i] == '"' || s[i] == '\'') {
        kind = TEXT, end = end_of_quoted(s, i);
    } else {
        kind = SYMBOL, end = i + 1;
    }
    *at = end;
    return {kind, s.substr(i, end - i)};
}

static Tokens split(const std::string &s) {
    Tokens tokens;
    bool line_begins = true;
    for (size_t at = 0; at < s.size();) {
        tokens.push_back(next_token(s, &at, line_begins));
        const Token &last = tokens.back();
        line_begins = last.text.back() == '\n' || (line_begins && last.kind == SPACE);
    }
    return tokens;
}

// ---- Errors, with the line that the linemarkers give ----

[[noreturn]] static void fail(const Tokens &tokens, size_t at, const std::string &what) {
    int line = 1;
    std::string file = "input";
    for (size_t i = 0; i < at; i++) {
        char name[4096];
        int number;
        if (tokens[i].kind == DIRECTIVE && sscanf(tokens[i].text.c_str(), "# %d \"%4095[^\"]\"", &number, name) == 2) {
            line = number - 1;
            file = name;
        }
        for (char c : tokens[i].text) { line += c == '\n'; }
    }
    fprintf(stderr, "%s:%d: error: %s\n", file.c_str(), line, what.c_str());
    exit(1);
}

// ---- Walking over tokens ----

static const size_t NONE = static_cast<size_t>(-1);

static size_t before(const Tokens &t, size_t i) { // the token before i that is not space
    while (i-- > 0) {
        if (t[i].kind != SPACE && t[i].kind != DIRECTIVE) { return i; }
    }
    return NONE;
}
static size_t after(const Tokens &t, size_t i) {
    for (i++; i < t.size(); i++) {
        if (t[i].kind != SPACE && t[i].kind != DIRECTIVE) { return i; }
    }
    return NONE;
}

// Goes from a closing bracket back to its opening bracket.
static size_t opening(const Tokens &t, size_t i) {
    const std::string close = t[i].text, open = close == ">" ? "<" : close == ")" ? "(" : close == "]" ? "[" : "{";
    int depth = 0;
    for (; i != NONE; i = before(t, i)) {
        if (close == ">" && (t[i].is(")") || t[i].is("]") || t[i].is("}"))) {
            i = opening(t, i);
            if (i == NONE) { return NONE; }
            continue;
        }
        if (t[i].is(close.c_str())) { depth++; }
        if (t[i].is(open.c_str()) && --depth == 0) { return i; }
    }
    return NONE;
}
// Goes from an opening bracket on to its closing bracket.
static size_t closing(const Tokens &t, size_t i) {
    const std::string open = t[i].text, close = open == "(" ? ")" : open == "[" ? "]" : open == "{" ? "}" : ">";
    int depth = 0;
    for (; i != NONE; i = after(t, i)) {
        if (t[i].is(open.c_str())) { depth++; }
        if (t[i].is(close.c_str()) && --depth == 0) { return i; }
    }
    return NONE;
}

static bool is_attribute(const Token &token) { return token.is("alignas") || token.is("__attribute__"); }

// Goes from i over template arguments, attributes and brackets to the first token that is one of the stops.
static size_t find_stop(const Tokens &t, size_t i, const char *stops) {
    int angles = 0;
    while (i != NONE) {
        if (angles == 0 && t[i].kind == SYMBOL && strchr(stops, t[i].text[0])) { return i; }
        if (t[i].is("<")) { angles++; }
        if (t[i].is(">")) { angles--; }
        if (is_attribute(t[i])) { i = after(t, i); }
        if (i != NONE && (t[i].is("(") || t[i].is("[") || t[i].is("{"))) { i = closing(t, i); }
        if (i != NONE) { i = after(t, i); }
    }
    return NONE;
}

static std::string join(const Tokens &t, size_t begin, size_t end) {
    std::string text;
    for (size_t i = begin; i < end; i++) { text += t[i].text; }
    return text;
}

static std::string one_line(const std::string &text) { // without line ends and the space around them
    std::string result;
    for (char c : text) {
        bool space = isspace(static_cast<unsigned char>(c));
        if (!space) { result += c; }
        if (space && !result.empty() && result.back() != ' ') { result += ' '; }
    }
    while (!result.empty() && result.back() == ' ') { result.pop_back(); }
    return result;
}

static std::string quote(const std::string &text) {
    std::string result = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') { result += '\\'; }
        result += c;
    }
    return result + "\"";
}

// ---- Launches ----

// Finds the symbol three times, with only space between, and returns the last one.
static size_t three(const Tokens &t, size_t i, const char *symbol) {
    if (!t[i].is(symbol)) { return NONE; }
    size_t second = after(t, i), third = second == NONE ? NONE : after(t, second);
    bool all = third != NONE && t[second].is(symbol) && t[third].is(symbol);
    return all ? third : NONE;
}

static bool is_arrow(const Tokens &t, size_t i) { return i != NONE && i > 0 && t[i].is(">") && t[i - 1].is("-"); }

// The first token of the kernel's name, which ends before `end`: an expression of words, members, `::`, and brackets.
static size_t begin_of_name(const Tokens &t, size_t end) {
    size_t i = before(t, end), left = NONE;
    for (;; i = left) {
        while (i != NONE && (t[i].is(")") || t[i].is("]") || t[i].is(">"))) {
            bool parentheses = t[i].is(")");
            size_t open = opening(t, i);
            left = open == NONE ? NONE : before(t, open);
            bool alone = left == NONE || t[left].is("return") || (t[left].kind != WORD && !t[left].is("]"));
            if (parentheses && alone) { return open; }
            i = left;
        }
        if (i == NONE || t[i].kind != WORD) { fail(t, end, "expected the name of a kernel before <<<"); }
        size_t link = before(t, i), first = link;
        if (link == NONE) { return i; }
        if (t[link].is(":") || is_arrow(t, link)) { first = before(t, link); }
        if (!t[link].is(".") && !is_arrow(t, link) && !(first != link && first != NONE && t[first].is(":"))) {
            return i;
        }
        left = before(t, first);
        bool qualified = left != NONE && !t[left].is("return") &&
                         (t[left].kind == WORD || t[left].is(">") || t[left].is("]") || t[left].is(")"));
        if (!qualified) { return first; }
    }
}

static size_t end_of_config(const Tokens &t, size_t i) { // the first > of >>>
    while (i != NONE) {
        if (t[i].is("(") || t[i].is("[") || t[i].is("{")) { i = closing(t, i); }
        if (i == NONE || t[i].is(";")) { return NONE; }
        if (three(t, i, ">") != NONE) { return i; }
        i = after(t, i);
    }
    return NONE;
}

static void erase(Tokens &t, size_t begin, size_t end) { // keeps the line ends
    for (size_t i = begin; i < end; i++) {
        const auto lines = std::count(t[i].text.begin(), t[i].text.end(), '\n');
        if (t[i].kind != DIRECTIVE) { t[i] = {SPACE, std::string(static_cast<size_t>(lines), '\n')}; }
    }
}

// A linemarker's flag 3 says that what follows is a system's header.
static bool enters_system(const std::string &linemarker) {
    size_t quote = linemarker.rfind('"');
    return quote != std::string::npos && linemarker.find(" 3", quote) != std::string::npos;
}

// The tokens between an opening bracket and its closing bracket, split at commas.
static std::vector<Tokens> split_list(const Tokens &t, size_t open, size_t close) {
    std::vector<Tokens> items;
    for (size_t i = open + 1; i < close; i++) {
        if (t[i].kind == DIRECTIVE) { continue; }
        if (items.empty() || t[i].is(",")) { items.emplace_back(); }
        if (t[i].is(",")) { continue; }
        bool opens = t[i].is("(") || t[i].is("[") || t[i].is("{") || t[i].is("<");
        size_t last = opens && closing(t, i) < close ? closing(t, i) : i; // not of a comparison
        items.back().insert(items.back().end(), &t[i], &t[last] + 1);
        i = last;
    }
    return items;
}

// The function templates of the program itself, and how many parameters they have.
static std::map<std::string, size_t> find_templates(const Tokens &t) {
    std::map<std::string, size_t> templates;
    bool of_system = false;
    for (size_t i = 0; i < t.size(); i++) {
        bool linemarker = t[i].kind == DIRECTIVE && t[i].text.compare(0, 2, "# ") == 0;
        if (linemarker) { of_system = enters_system(t[i].text); }
        size_t open = of_system || !t[i].is("template") ? NONE : after(t, i);
        if (open == NONE || !t[open].is("<")) { continue; }
        size_t close = closing(t, open), stop = close == NONE ? NONE : find_stop(t, after(t, close), "(;={");
        if (stop == NONE || !t[stop].is("(")) { continue; }
        size_t &parameters = templates[t[before(t, stop)].text];
        parameters = std::max(parameters, split_list(t, open, close).size());
    }
    return templates;
}

// Says whether the compiler must find template arguments of the kernel whose name ends at token `last`.
static bool is_deduced(const Tokens &t, size_t last) {
    static const std::map<std::string, size_t> templates = find_templates(t);
    size_t given = 0;
    if (t[last].is(">")) {
        size_t open = opening(t, last);
        given = split_list(t, open, last).size(), last = before(t, open);
    }
    auto found = templates.find(t[last].text);
    return found != templates.end() && given < found->second;
}

static void rewrite_device(Tokens &t, size_t keyword);

// Calls the kernel with what the launch is given. A null pointer stays a literal of the call, because it converts.
static std::string deduce(const std::string &name, const Tokens &t, size_t paren, size_t close) {
    std::string parameters, call, values;
    int count = 0;
    for (const Tokens &item : split_list(t, paren, close)) {
        std::string value = one_line(join(item, 0, item.size())), number = std::to_string(count++);
        bool literal = value == "0" || value == "__null" || value == "nullptr";
        call += (call.empty() ? "" : ", ") + (literal ? value : "a" + number);
        if (!literal) { parameters += (parameters.empty() ? "auto a" : ", auto a") + number; }
        if (!literal) { values += ", " + value; }
    }
    return "[](" + parameters + ") { " + name + "(" + call + "); }" + values;
}

static void rewrite_launch(Tokens &t, size_t open) {
    size_t left = before(t, open);
    if (left != NONE && t[left].is("operator")) { return; }
    size_t config = three(t, open, "<"), close = end_of_config(t, after(t, config));
    if (close == NONE) { fail(t, open, "no >>> ends the launch"); }
    size_t paren = after(t, three(t, close, ">"));
    if (paren == NONE || !t[paren].is("(")) { fail(t, close, "expected ( after >>>"); }
    size_t name_begin = begin_of_name(t, open), end = closing(t, paren);
    std::string name = one_line(join(t, name_begin, open));
    erase(t, close, paren);
    if (is_deduced(t, left) && end != NONE) {
        for (size_t i = paren; i < end; i++) {
            if (t[i].is("__device__")) { rewrite_device(t, i); } // of a lambda
        }
        t[paren] = {SYMBOL, ").deduce(" + deduce(name, t, paren, end)};
        erase(t, paren + 1, end);
    } else {
        t[paren] = {SYMBOL, ").of(" + name + ")("};
    }
    erase(t, name_begin, config + 1);
    t[name_begin].text = "::emu::Launch(" + quote(name) + ", __builtin_FILE(), __builtin_LINE(), " + t[name_begin].text;
    t[name_begin].kind = SYMBOL;
}

// cudaLaunchKernel((const void *)K, ...): gives the function the kernel's name, and its type.
static void rewrite_launch_call(Tokens &t, size_t name) {
    size_t open = after(t, name), first = open == NONE ? NONE : after(t, open), left = before(t, name);
    bool call = first != NONE && t[open].is("(") && (left == NONE || t[left].kind != WORD || t[left].is("return"));
    if (!call) { return; }
    size_t cast = t[first].is("reinterpret_cast") || t[first].is("static_cast") ? after(t, first) : first;
    if (cast != first || t[first].is("(")) { erase(t, first, closing(t, cast) + 1); }
    Tokens kernel = split_list(t, open, closing(t, open))[0];
    t[open].text += quote(one_line(join(kernel, 0, kernel.size()))) + ", ";
    t[open].kind = SYMBOL;
}

// A built-in variable, or one of the program's own that has its name. The compiler knows.
static void rewrite_dim(Tokens &t, size_t name) {
    if (!t[name].is("threadIdx") && !t[name].is("blockIdx") && !t[name].is("blockDim") && !t[name].is("gridDim")) {
        return;
    }
    size_t left = before(t, name), right = after(t, name);
    if (left == NONE || right == NONE || t[left].is(".") || is_arrow(t, left)) { return; }
    bool value = t[right].is(".") || t[left].is("=") || t[left].is("return") || t[left].is("(") ||
                 (t[left].is(",") && t[right].is(")"));
    if (value) { t[name] = {SYMBOL, "emu_dim(" + t[name].text + ")"}; }
}

// ---- Inline PTX: each instruction becomes a call of a function of emu_ptx.h ----

static const char PTX_FUNCTIONS[] =
    " ld st atom_add atom_min atom_max atom_and atom_or atom_xor atom_inc atom_dec atom_exch atom_cas red_add red_min "
    "red_max red_and red_or red_xor red_inc red_dec mov lop3 prmt prmt_f4e prmt_b4e prmt_rc8 prmt_ecl prmt_ecr "
    "prmt_rc16 bar barrier bar_warp membar_gl membar_cta membar_sys fence cp_async cp_async_commit_group "
    "cp_async_wait_group cp_async_wait_all ldmatrix_m8n8 ldmatrix_m8n8_trans mma_m16n8k16_f32_bf16_bf16 "
    "mma_m16n8k16_f32_f16_f16 mma_m16n8k16_f16_f16_f16 mma_m16n8k8_f32_tf32_tf32 ex2 lg2 rcp rsqrt tanh ";
static const char PTX_REGISTERS[] = " laneid warpid lanemask_eq lanemask_lt lanemask_le lanemask_gt lanemask_ge clock "
                                    "clock64 tid ntid ctaid nctaid ";
// What changes nothing here: where memory lies, how it is cached, and what the rest of the name says as well.
static const char PTX_IGNORED[] = " global shared gpu cta sys nc ca cg cs cv lu wb wt volatile relaxed acquire release "
                                  "acq_rel sc v2 v4 sync aligned approx ftz rn row col x1 x2 x4 noftz ";

static bool in_list(const char *list, const std::string &word) { return strstr(list, (" " + word + " ").c_str()); }

static std::vector<std::string> words_of(const std::string &text, char between, const char *open = "",
                                         const char *close = "") {
    std::vector<std::string> words(1);
    int depth = 0;
    for (char c : text) {
        depth += strchr(open, c) != nullptr, depth -= strchr(close, c) != nullptr;
        if (c != between || depth > 0) { words.back() += c; }
        if (c == between && depth == 0) { words.emplace_back(); }
    }
    return words;
}

struct Asm {
    const Tokens &tokens;
    size_t at;
    std::vector<std::string> values; // of the operands

    [[noreturn]] void refuse(const std::string &what) const {
        fail(tokens, at, "the PTX " + what + " is not part of the emulator (dev/emu/README.md lists what is)");
    }

    std::string operand(const std::string &text) const { // %0, %%laneid, {%0, %1}, [%2 + 16], 7
        if (text.empty()) { refuse("operand \"\""); }
        if (text[0] == '{') { return operands(text.substr(1, text.size() - 2)); }
        if (text[0] == '[') {
            std::vector<std::string> sum = words_of(text.substr(1, text.size() - 2) + "+0", '+');
            return "::emu::ptx::at(" + operand(one_line(sum[0])) + ", " + one_line(sum[1]) + ")";
        }
        if (text.compare(0, 2, "%%") == 0) {
            std::vector<std::string> name = words_of(text.substr(2), '.');
            if (!in_list(PTX_REGISTERS, name[0])) { refuse("register " + text.substr(1)); }
            return "::emu::ptx::" + name[0] + "()" + (name.size() > 1 ? "." + name[1] : "");
        }
        if (strchr("-0123456789", text[0])) { return text; }
        size_t i = strtoul(text.c_str() + 1, nullptr, 10);
        if (text[0] != '%' || i >= values.size()) { refuse("operand " + text); }
        return "(" + values[i] + ")";
    }

    std::string operands(const std::string &text) const { // addresses first
        std::string addresses, others;
        for (const std::string &word : words_of(text, ',', "{[", "}]")) {
            std::string trimmed = one_line(word);
            std::string &list = trimmed[0] == '[' ? addresses : others;
            list += (list.empty() ? "" : ", ") + operand(trimmed);
        }
        return addresses + (addresses.empty() || others.empty() ? "" : ", ") + others;
    }

    std::string instruction(const std::string &text) const {
        size_t space = std::min(text.find(' '), text.size());
        std::string full = text.substr(0, space), name, type;
        for (const std::string &word : words_of(full, '.')) {
            bool is_type = strchr("bsuf", word[0]) && word.find_first_not_of("0123456789", 1) == std::string::npos;
            bool of_mma = name.compare(0, 4, "mma_") == 0;
            if (is_type) { type = "<::emu::ptx::" + word + ">"; }
            if (in_list(PTX_IGNORED, word) || word.find("::") != std::string::npos || (is_type && !of_mma)) {
                continue;
            }
            name += (name.empty() ? "" : "_") + word;
        }
        if (name.compare(0, 4, "mma_") == 0) { name.resize(name.rfind('_')); } // the type of c is that of d
        if (!in_list(PTX_FUNCTIONS, name)) { refuse("instruction " + full); }
        return "::emu::ptx::" + name + type + "(" + (space < text.size() ? operands(text.substr(space)) : "") + ")";
    }
};

static void rewrite_asm(Tokens &t, size_t keyword) {
    size_t open = after(t, keyword);
    while (open != NONE && t[open].kind == WORD) { open = after(t, open); } // volatile
    if (open == NONE || !t[open].is("(")) { return; }
    size_t close = closing(t, open), i = after(t, open);
    std::string text, calls;
    for (; t[i].kind == TEXT; i = after(t, i)) { text += t[i].text.substr(1, t[i].text.size() - 2); }
    if (close == NONE || text.find(';') == std::string::npos) { return; } // for the host's processor
    for (size_t escape; (escape = text.find('\\')) != std::string::npos;) { text.replace(escape, 2, " "); }
    Asm statement = {t, keyword, {}};
    for (size_t begin = NONE; i < close; i = after(t, i)) {
        rewrite_dim(t, i);
        if (begin == NONE && t[i].is("(")) { begin = i; }
        if (begin == NONE || closing(t, begin) != i) { continue; }
        statement.values.push_back(one_line(join(t, begin + 1, i)));
        begin = NONE;
    }
    for (const std::string &instruction : words_of(text, ';')) {
        size_t begin = std::min(instruction.find_first_not_of(" {}"), instruction.size()); // of a scope
        std::string trimmed = one_line(instruction.substr(begin));
        if (!trimmed.empty()) { calls += (calls.empty() ? "" : ", ") + statement.instruction(trimmed); }
    }
    erase(t, keyword, close + 1);
    t[keyword] = {SYMBOL, calls};
}

// ---- Shared and device variables ----

// Returns the first token of the declaration that holds token i.
static size_t begin_of_declaration(const Tokens &t, size_t i) {
    size_t begin = i;
    for (size_t left = before(t, i); left != NONE; left = before(t, left)) {
        if (t[left].is(";") || t[left].is("{") || t[left].is("}") || t[left].is(":")) { break; }
        begin = left;
    }
    return begin;
}

static int brace_depth(const Tokens &t, size_t at) {
    int depth = 0;
    for (size_t i = 0; i < at; i++) { depth += t[i].is("{"), depth -= t[i].is("}"); }
    return depth;
}

static void erase_attributes(Tokens &t, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++) {
        if (!is_attribute(t[i])) { continue; }
        size_t close = closing(t, after(t, i));
        erase(t, i, close + 1);
    }
}

// Makes two declarations of `__shared__ T a[M], b[N];`. The second one comes to rewrite_shared later.
static void split_declaration(Tokens &t, size_t begin) {
    size_t comma = find_stop(t, begin, ";,="), name = before(t, find_stop(t, begin, "[;,="));
    if (comma == NONE || !t[comma].is(",")) { return; }
    bool pointers = t[before(t, name)].is("*") || t[before(t, name)].is("&") || t[after(t, comma)].is("*");
    if (pointers) { return; }
    Tokens again = split("; " + one_line(join(t, begin, name)));
    t.erase(t.begin() + static_cast<ptrdiff_t>(comma));
    t.insert(t.begin() + static_cast<ptrdiff_t>(comma), again.begin(), again.end());
}

static void rewrite_shared(Tokens &t, size_t keyword) {
    static int count;
    size_t begin = begin_of_declaration(t, keyword);
    split_declaration(t, begin);
    size_t end = find_stop(t, begin, ";,=");
    if (end == NONE || !t[end].is(";")) {
        fail(t, keyword, "a __shared__ variable with an initializer, or several pointers in one declaration");
    }
    if (brace_depth(t, keyword) == 0) { fail(t, keyword, "__shared__ outside of a function: declare it inside"); }
    bool is_extern = false;
    for (size_t i = begin; i < end; i++) {
        is_extern |= t[i].is("extern");
        if (t[i].is("extern") || t[i].is("static") || i == keyword) { erase(t, i, i + 1); }
    }
    size_t after_name = find_stop(t, begin, "[;"), name_at = before(t, after_name);
    std::string name = t[name_at].text;
    if (t[name_at].kind != WORD) { fail(t, keyword, "no name in the __shared__ declaration"); }
    std::string number = std::to_string(count++);
    if (is_extern) {
        erase_attributes(t, begin, end);
        std::string type = one_line(join(t, begin, name_at));
        erase(t, begin, end);
        t[begin] = {SYMBOL,
                    type + " *" + name + " = static_cast<" + type + " *>(::emu::dynamic_shared())" + t[begin].text};
        return;
    }
    std::string structure = "EmuShared" + number, key = "emu_key" + number;
    t[begin].text = "struct " + structure + " { " + t[begin].text;
    t[begin].kind = SYMBOL;
    t[end - 1].text += "; }; static const char " + key + " = 0; auto &" + name + " = static_cast<" + structure +
                       " *>(::emu::shared_variable(&" + key + ", sizeof(" + structure + "), alignof(" + structure +
                       "), " + quote(name) + "))->" + name;
    t[end - 1].kind = SYMBOL;
}

// Translates __device__ and __constant__. A declaration without a parameter list is a variable.
static void rewrite_device(Tokens &t, size_t keyword) {
    size_t stop = find_stop(t, after(t, keyword), "(;=[{");
    bool variable = stop != NONE && !t[stop].is("(") && !t[stop].is("{");
    for (size_t i = after(t, keyword); variable && i != NONE && i < stop; i = after(t, i)) {
        variable = !t[i].is("operator") && !t[i].is("const") && !t[i].is("constexpr");
    }
    t[keyword].text = variable ? "__attribute__((section(\"emu_device\"), used))" : "";
    t[keyword].kind = SPACE;
}

static void rewrite_noinline(Tokens &t, size_t keyword) {
    size_t left = before(t, keyword);
    bool in_attribute = left != NONE && (t[left].is("(") || t[left].is(","));
    if (!in_attribute) { t[keyword].text = "__attribute__((noinline))"; }
}

// atomicAdd_block and atomicAdd_system: here all atomics are for the device.
static std::string without_scope(const std::string &word) {
    std::string scope = word.substr(std::min(word.find('_'), word.size()));
    return scope == "_block" || scope == "_system" ? word.substr(0, word.find('_')) : word;
}

static bool is_unroll(const std::string &directive) {
    const size_t i = std::min(directive.find_first_not_of(" \t", 1), directive.size());
    return directive.compare(i, 6, "pragma") == 0 && directive.find("unroll", i + 6) != std::string::npos &&
           directive.find("omp", i + 6) == std::string::npos;
}

int main() {
    Tokens t = split(read_all(stdin));
    bool of_system = false;
    for (size_t i = 0; i < t.size(); i++) {
        const std::string word = t[i].kind == WORD ? t[i].text : "";
        if (t[i].kind == DIRECTIVE && t[i].text.compare(0, 2, "# ") == 0) { of_system = enters_system(t[i].text); }
        if (t[i].kind == DIRECTIVE && is_unroll(t[i].text)) { t[i].text = ""; }
        rewrite_dim(t, i);
        if (word.compare(0, 6, "atomic") == 0) { t[i].text = without_scope(word); }
        if (word == "cudaLaunchKernel" || word == "cudaLaunchCooperativeKernel") { rewrite_launch_call(t, i); }
        if (!of_system && (word == "asm" || word == "__asm__" || word == "__asm")) { rewrite_asm(t, i); }
        if (t[i].is("__shared__")) { rewrite_shared(t, i); }
        if (t[i].is("__device__") || t[i].is("__constant__")) { rewrite_device(t, i); }
        if (t[i].is("__noinline__")) { rewrite_noinline(t, i); }
        if (t[i].is("<") && three(t, i, "<") != NONE) { rewrite_launch(t, i); }
    }
    for (const Token &token : t) { fputs(token.text.c_str(), stdout); }
    return ferror(stdout) || fflush(stdout) != 0;
}
