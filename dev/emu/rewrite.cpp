// Translates CUDA's syntax into C++, in preprocessed text from standard input to standard output:
//
//   K<<<grid, block, ...>>>(args)     ->  ::emu::Launch("K", file, line, grid, block, ...)(K, args)
//   K<<<...>>>(args), K a template    ->  ::emu::Launch(...).deduce([](auto... a) { K(a...); }, args)
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
#include <set>
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

[[noreturn]] static void fail(const Tokens &tokens, size_t at, const char *what) {
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
    fprintf(stderr, "%s:%d: error: %s\n", file.c_str(), line, what);
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

// The first token of the kernel's name, which ends before `end`. A name is words with template arguments, joined by
// `::`, or anything in parentheses.
static size_t begin_of_name(const Tokens &t, size_t end) {
    size_t i = before(t, end);
    if (i != NONE && t[i].is(")")) { return opening(t, i); }
    for (;;) {
        if (i != NONE && t[i].is(">")) {
            i = opening(t, i);
            if (i != NONE) { i = before(t, i); }
        }
        if (i == NONE || t[i].kind != WORD) { fail(t, end, "expected the name of a kernel before <<<"); }
        size_t colon = before(t, i), first = colon == NONE ? NONE : before(t, colon);
        if (first == NONE || !t[colon].is(":") || !t[first].is(":")) { return i; }
        size_t left = before(t, first);
        bool qualified = left != NONE && (t[left].kind == WORD || t[left].is(">")) && !t[left].is("return");
        if (!qualified) { return first; }
        i = left;
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
        std::string lines;
        for (char c : t[i].text) {
            if (c == '\n') { lines += c; }
        }
        if (t[i].kind != DIRECTIVE) { t[i] = {SPACE, lines}; }
    }
}

// A linemarker's flag 3 says that what follows is a system's header.
static bool enters_system(const std::string &linemarker) {
    size_t quote = linemarker.rfind('"');
    return quote != std::string::npos && linemarker.find(" 3", quote) != std::string::npos;
}

// The function templates of the program itself.
static std::set<std::string> names_of_templates(const Tokens &t) {
    std::set<std::string> names;
    bool of_system = false;
    for (size_t i = 0; i < t.size(); i++) {
        bool linemarker = t[i].kind == DIRECTIVE && t[i].text.compare(0, 2, "# ") == 0;
        if (linemarker) { of_system = enters_system(t[i].text); }
        size_t open = of_system || !t[i].is("template") ? NONE : after(t, i);
        if (open == NONE || !t[open].is("<")) { continue; }
        size_t close = closing(t, open), stop = close == NONE ? NONE : find_stop(t, after(t, close), "(;={");
        if (stop != NONE && t[stop].is("(")) { names.insert(t[before(t, stop)].text); }
    }
    return names;
}

static void rewrite_launch(Tokens &t, size_t open) {
    size_t left = before(t, open);
    if (left != NONE && t[left].is("operator")) { return; }
    size_t config = three(t, open, "<"), close = end_of_config(t, after(t, config));
    if (close == NONE) { fail(t, open, "no >>> ends the launch"); }
    size_t last = three(t, close, ">"), paren = after(t, last);
    if (paren == NONE || !t[paren].is("(")) { fail(t, close, "expected ( after >>>"); }
    size_t name_begin = begin_of_name(t, open), first_argument = after(t, paren);
    std::string name = one_line(join(t, name_begin, open));
    bool no_arguments = first_argument != NONE && t[first_argument].is(")");
    erase(t, close, paren);
    static const std::set<std::string> templates = names_of_templates(t);
    bool deduced = templates.count(name) > 0;
    std::string kernel = deduced ? ").deduce([](auto... a) { " + name + "(a...); }" : ")(" + name;
    t[paren] = {SYMBOL, kernel + (no_arguments ? "" : ", ")};
    erase(t, name_begin, config + 1);
    t[name_begin].text = "::emu::Launch(" + quote(name) + ", __builtin_FILE(), __builtin_LINE(), " + t[name_begin].text;
    t[name_begin].kind = SYMBOL;
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
    for (size_t i = 0; i < at; i++) {
        if (t[i].is("{")) { depth++; }
        if (t[i].is("}")) { depth--; }
    }
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

static bool is_unroll(const std::string &directive) {
    size_t i = 1;
    while (i < directive.size() && isspace(static_cast<unsigned char>(directive[i]))) { i++; }
    return directive.compare(i, 6, "pragma") == 0 && directive.find("unroll", i + 6) != std::string::npos &&
           directive.find("omp", i + 6) == std::string::npos;
}

int main() {
    Tokens t = split(read_all(stdin));
    for (size_t i = 0; i < t.size(); i++) {
        if (t[i].kind == DIRECTIVE && is_unroll(t[i].text)) { t[i].text = ""; }
        if (t[i].is("__shared__")) { rewrite_shared(t, i); }
        if (t[i].is("__device__") || t[i].is("__constant__")) { rewrite_device(t, i); }
        if (t[i].is("__noinline__")) { rewrite_noinline(t, i); }
        if (t[i].is("<") && three(t, i, "<") != NONE) { rewrite_launch(t, i); }
    }
    for (const Token &token : t) { fputs(token.text.c_str(), stdout); }
    return ferror(stdout) || fflush(stdout) != 0;
}
