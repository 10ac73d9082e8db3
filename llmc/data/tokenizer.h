// Text to token ids and back.
//
// There are two kinds. The built-in byte tokenizer has one id per byte and needs no file. A file is llm.c's
// `gpt2_tokenizer.bin`, which lists the tokens but not the merges. For the tokens of GPT-2 or of another byte-pair
// encoding, the merges follow from the order of the tokens, and 256 bytes and end-of-text are the byte tokenizer. Other
// lists of tokens are refused. A file of version 3, our own, also says how a text is cut into words, how tokens merge,
// and which ids are ranked: tokens of text, where a lower id merges first. Its other ids are special (Llama 3,
// SmolLM2). Runs and shards keep their copies in this form. dev/data/vocab.py writes it from GPT-2's merges, and
// dev/hf.py from a tokenizer.json.
//
// No text is special: `<|endoftext|>` in the input is encoded letter by letter, and special ids appear only where a
// caller puts them. Every byte string decodes to itself after encoding, valid UTF-8 or not. But SmolLM2 has no token
// for 21 rare bytes: they leave no trace, as in transformers.
//
// Sources: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2 (bytes as the base
// vocabulary); Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units" (the merges).
#ifndef LLMC_TOKENIZER_H
#define LLMC_TOKENIZER_H

#include <signal.h>

#include "llmc/base/files.h"
#include "llmc/base/input_file.h"
#include "llmc/base/hash.h"
#include "llmc/base/text.h"
#include "llmc/data/unicode_tables.h"

typedef enum { TOKENIZER_BYTE, TOKENIZER_BPE } TokenizerKind;

// Which rule cuts a text into words. SmolLM2 cuts off single digits first, then what is between them as GPT-2 does.
typedef enum { WORDS_GPT2, WORDS_LLAMA3, WORDS_SMOLLM2, WORDS_RULES } WordRule;

// Which two tokens merge. By order: each token has one pair, which the order of all tokens tells. By bytes: any two
// whose bytes together are a token, and a word that is a token is taken whole.
typedef enum { MERGE_BY_ORDER, MERGE_BY_BYTES, MERGE_RULES } MergeRule;

// The class of a character in the pre-tokenisation rule. MULTIBYTE: the bytes that follow decide.
typedef enum { CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE, CHAR_MULTIBYTE } CharClass;

#define END_OF_TEXT "<|endoftext|>"
#ifndef VOCAB_HINT // a model with tokenizers of its own says where they come from
#define VOCAB_HINT "give --tokenizer gpt2_tokenizer.bin (python3 dev/data/vocab.py makes it)"
#endif

enum {
    MAX_TOKEN_BYTES = 255,          // the limit of gpt2_tokenizer.bin's length byte; GPT-2's longest token has 128
    NO_TOKEN = 0xffffff,            // "these two do not merge", "no such token"
    BPE_WINDOW = 64,                // bytes of a long word that are merged at a time
    BPE_STACK = 512,                // bytes that are merged without allocating memory
    PARALLEL_JOBS = 256,            // parts of a text that are encoded independently, at most
    PARALLEL_JOB_BYTES = 64 * 1024, // bytes of a part, at least
};

// Tokens `left` and `right` become token `merged`: left << 44 | right << 24 | merged. Free slots are MERGE_FREE.
typedef uint64_t MergeSlot;
#define MERGE_FREE UINT64_MAX

// Finds a token by its bytes. Free slots have length 0.
typedef struct {
    uint64_t head; // its first 8 bytes, or all of them, followed by zeros
    uint32_t length, token;
} WordSlot;

typedef struct {
    TokenizerKind kind;
    int vocab_size;    // ids are 0 .. vocab_size-1
    int eot_token;     // the special id that precedes each document
    int version;       // of the file that tokenizer_write makes: 2 or 3
    int first, ranked; // ids first .. first+ranked-1 are tokens of text, the others are special
    WordRule word_rule;
    MergeRule merge_rule;
    bool lacks_bytes;        // some bytes have no token
    uint32_t byte_ids[256];  // byte -> id or NO_TOKEN
    uint8_t byte_class[256]; // CharClass of ASCII characters, CHAR_MULTIBYTE for bytes above
    // BPE only:
    uint8_t *token_bytes;    // token i is token_bytes[token_offsets[i] .. token_offsets[i+1])
    uint32_t *token_offsets; // (vocab_size+1)
    int table_bits;          // the hash tables have 2^table_bits slots, so that they are at most half full
    MergeSlot *merges;       // (1 << table_bits), the id of a merged pair is also its rank: lower ids merge first
    WordSlot *words;         // (1 << table_bits), the ranked tokens
    uint32_t *byte_pairs;    // (256,256), what two bytes merge to
    uint8_t *char_classes;   // (UNICODE_CODE_POINTS / 4), 2 bits each
    // Encoding fails soon after a signal has made this other than 0. NULL: nothing stops it.
    const volatile sig_atomic_t *stop;
} Tokenizer;

// ---- Characters ----

static inline CharClass tokenizer_code_point_class(const Tokenizer *t, uint32_t code_point) {
    return (CharClass)(t->char_classes[code_point / 4] >> (2 * (code_point % 4)) & 3);
}

// Returns the class of the character at p, n >= 1, and writes its length. A byte that is not part of a valid character
// counts as one character that is neither letter, number nor space.
static inline CharClass tokenizer_char_class(const Tokenizer *t, const uint8_t *p, size_t n, int *length) {
    *length = 1;
    if (p[0] < 0x80) { return (CharClass)t->byte_class[p[0]]; }
    uint32_t code_point;
    int found = utf8_decode(p, n, &code_point);
    if (found == 0) { return CHAR_OTHER; }
    *length = found;
    return tokenizer_code_point_class(t, code_point);
}

// Gives the code points that a table of unicode_tables.h takes their class, in the zeroed char_classes.
static inline void tokenizer_set_class(Tokenizer *t, const uint32_t *runs, size_t bytes, CharClass char_class) {
    uint32_t c = 0;
    for (size_t i = 0; i < bytes / sizeof(uint32_t); i += 2) {
        c += runs[i];
        for (uint32_t end = c + runs[i + 1]; c < end; c++) {
            t->char_classes[c / 4] |= (uint8_t)(char_class << (2 * (c % 4)));
        }
    }
}

static inline void tokenizer_init_classes(Tokenizer *t) {
    tokenizer_set_class(t, unicode_letters, sizeof(unicode_letters), CHAR_LETTER);
    tokenizer_set_class(t, unicode_numbers, sizeof(unicode_numbers), CHAR_NUMBER);
    tokenizer_set_class(t, unicode_spaces, sizeof(unicode_spaces), CHAR_SPACE);
    for (uint32_t c = 0; c < 256; c++) {
        t->byte_class[c] = (uint8_t)(c < 0x80 ? tokenizer_code_point_class(t, c) : CHAR_MULTIBYTE);
    }
}

// ---- Pre-tokenisation: a rule cuts a text into words, inside which bytes are merged. GPT-2's and Llama 3's: ----
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+

// The end of the run of characters of one class that begins at i.
static inline size_t tokenizer_run_end(const Tokenizer *t, const uint8_t *text, size_t i, size_t n, CharClass wanted) {
    for (;;) {
        while (i < n && t->byte_class[text[i]] == wanted) { i++; }
        if (i == n || text[i] < 0x80) { return i; }
        int length;
        if (tokenizer_char_class(t, text + i, n - i, &length) != wanted) { return i; }
        i += (size_t)length;
    }
}

// Returns the bytes of the contraction at text[i], an apostrophe. Returns 0 if it begins no contraction. Llama 3's may
// have capitals, and a long s.
static inline size_t tokenizer_contraction(const uint8_t *text, size_t i, size_t n, bool llama3) {
    const int fold = llama3 ? 'a' - 'A' : 0;
    int a = i + 1 < n ? text[i + 1] | fold : 0, b = i + 2 < n ? text[i + 2] | fold : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') { return 2; }
    if (llama3 && i + 2 < n && text[i + 1] == 0xc5 && text[i + 2] == 0xbf) { return 3; } // U+017F
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

// The end of a word of spaces, text[i .. end), before another character, which the last one belongs to.
static inline size_t tokenizer_leave_space(const uint8_t *text, size_t i, size_t end) {
    size_t last = end - 1;
    while ((text[last] & 0xc0) == 0x80) { last--; }
    return last > i ? last : end;
}

// GPT-2's rule.
static inline size_t tokenizer_word_end_gpt2(const Tokenizer *t, const uint8_t *text, size_t i, size_t n) {
    if (text[i] == '\'') {
        size_t length = tokenizer_contraction(text, i, n, false);
        if (length > 0) { return i + length; }
    }
    int length;
    size_t start = text[i] == ' ' && i + 1 < n ? i + 1 : i; // a word may begin with one space
    CharClass first = tokenizer_char_class(t, text + start, n - start, &length);
    size_t end = tokenizer_run_end(t, text, start + (size_t)length, n, first);
    return first != CHAR_SPACE || end == n ? end : tokenizer_leave_space(text, i, end);
}

// SmolLM2's rule: GPT-2's between digits, each of which is a word.
static inline size_t tokenizer_word_end_smollm2(const Tokenizer *t, const uint8_t *text, size_t i, size_t n) {
    int length;
    CharClass first = tokenizer_char_class(t, text + i, n - i, &length);
    if (first == CHAR_NUMBER) { return i + (size_t)length; }
    size_t end = first == CHAR_SPACE ? tokenizer_run_end(t, text, i, n, first) : n; // of spaces
    if (end < n && tokenizer_char_class(t, text + end, n - end, &length) == CHAR_NUMBER) { return end; }
    return tokenizer_word_end_gpt2(t, text, i, n);
}

static inline bool tokenizer_ends_line(uint8_t byte) { return byte == '\r' || byte == '\n'; }

// Llama 3's rule.
static inline size_t tokenizer_word_end_llama3(const Tokenizer *t, const uint8_t *text, size_t i, size_t n) {
    int length, more;
    size_t end = text[i] == '\'' ? tokenizer_contraction(text, i, n, true) : 0;
    if (end > 0) { return i + end; }
    CharClass first = tokenizer_char_class(t, text + i, n - i, &length), second = CHAR_MULTIBYTE; // at the end
    end = i + (size_t)length;
    if (end < n) { second = tokenizer_char_class(t, text + end, n - end, &more); }
    bool joins = second == CHAR_LETTER && first != CHAR_NUMBER && !tokenizer_ends_line(text[i]);
    if (first == CHAR_LETTER || joins) { return tokenizer_run_end(t, text, end, n, CHAR_LETTER); }
    for (int digits = 1; first == CHAR_NUMBER && second == CHAR_NUMBER && digits < 3; digits++) {
        end += (size_t)more;
        second = end < n ? tokenizer_char_class(t, text + end, n - end, &more) : CHAR_MULTIBYTE;
    }
    if (first == CHAR_NUMBER) { return end; }
    if (first == CHAR_OTHER || (text[i] == ' ' && second == CHAR_OTHER)) {
        end = tokenizer_run_end(t, text, end, n, CHAR_OTHER);
        while (end < n && tokenizer_ends_line(text[end])) { end++; }
        return end;
    }
    end = tokenizer_run_end(t, text, end, n, CHAR_SPACE);
    size_t line = end; // behind the last end of a line among these spaces
    while (line > i && !tokenizer_ends_line(text[line - 1])) { line--; }
    return line > i ? line : end == n ? end : tokenizer_leave_space(text, i, end);
}

// The end of the word that begins at text[i], i < n.
static inline size_t tokenizer_word_end(const Tokenizer *t, const uint8_t *text, size_t i, size_t n) {
    if (t->word_rule == WORDS_GPT2) { return tokenizer_word_end_gpt2(t, text, i, n); }
    return (t->word_rule == WORDS_LLAMA3 ? tokenizer_word_end_llama3 : tokenizer_word_end_smollm2)(t, text, i, n);
}

// The class of the character that ends just before text[i], i > 0.
static inline CharClass tokenizer_class_before(const Tokenizer *t, const uint8_t *text, size_t i) {
    size_t start = i - 1;
    while (start > 0 && i - start < 4 && (text[start] & 0xc0) == 0x80) { start--; }
    int length;
    CharClass found = tokenizer_char_class(t, text + start, i - start, &length);
    return start + (size_t)length == i ? found : CHAR_OTHER; // otherwise a stray byte
}

// May the text be cut before text[i], 0 < i < n? Returns true only if a word ends there whatever comes before and
// behind. No alternative of GPT-2's rule goes from one class to another, except for a space at its beginning and an
// apostrophe before letters. Llama 3's go also from other characters to letters and ends of lines. The character at
// text[i] must be complete.
static inline bool tokenizer_can_split(const Tokenizer *t, const uint8_t *text, size_t i, size_t n) {
    if (t->kind == TOKENIZER_BYTE) { return true; }
    if ((text[i] & 0xc0) == 0x80) { return false; } // perhaps inside a character
    int length;
    CharClass before = tokenizer_class_before(t, text, i), behind = tokenizer_char_class(t, text + i, n - i, &length);
    bool joins = behind == CHAR_LETTER && text[i - 1] == '\'';
    if (t->word_rule == WORDS_LLAMA3) {
        joins = before == CHAR_OTHER && (behind == CHAR_LETTER || tokenizer_ends_line(text[i]));
    }
    return before != behind && before != CHAR_SPACE && !joins;
}

// The first place at or behind `from` where the text may be cut, or n.
static inline size_t tokenizer_next_split(const Tokenizer *t, const uint8_t *text, size_t from, size_t n) {
    for (size_t i = max_i64((int64_t)from, 1); i < n; i++) {
        if (tokenizer_can_split(t, text, i, n)) { return i; }
    }
    return n;
}

// The last place where a text that goes on behind its n bytes may be cut, or 0.
static inline size_t tokenizer_last_split(const Tokenizer *t, const uint8_t *text, size_t n) {
    for (size_t i = n < 4 ? 0 : n - 4; i > 0; i--) { // the last character may be incomplete
        if (tokenizer_can_split(t, text, i, n)) { return i; }
    }
    return 0;
}

// ---- Words ----

static inline uint64_t tokenizer_load32(const uint8_t *p) {
    uint32_t value;
    memcpy(&value, p, 4);
    return value;
}

static inline uint64_t tokenizer_load64(const uint8_t *p) {
    return tokenizer_load32(p) | tokenizer_load32(p + 4) << 32;
}

// Returns the first 8 bytes, or all n >= 1 bytes followed by zeros. Reads only these n bytes.
static inline uint64_t tokenizer_word_head(const uint8_t *p, size_t n) {
    if (n >= 8) { return tokenizer_load64(p); }
    if (n >= 4) { return tokenizer_load32(p) | tokenizer_load32(p + n - 4) << (8 * (n - 4)); }
    return p[0] | (uint64_t)p[n / 2] << (8 * (n / 2)) | (uint64_t)p[n - 1] << (8 * (n - 1));
}

static inline uint64_t tokenizer_next_slot(const Tokenizer *t, uint64_t i) {
    return (i + 1) & (((uint64_t)1 << t->table_bits) - 1);
}

// The slot of a word, or the free slot where it belongs.
static inline WordSlot *tokenizer_word_slot(const Tokenizer *t, const uint8_t *word, size_t n) {
    uint64_t head = tokenizer_word_head(word, n), hash = (head ^ n) * 0x9e3779b97f4a7c15ULL;
    if (n > 8) { hash = (hash ^ hash >> 32 ^ tokenizer_load64(word + n - 8)) * 0x9e3779b97f4a7c15ULL; }
    for (uint64_t i = hash >> (64 - t->table_bits);; i = tokenizer_next_slot(t, i)) {
        WordSlot *slot = &t->words[i];
        if (slot->length == 0) { return slot; }
        if (slot->head != head || slot->length != n) { continue; }
        if (n <= 8 || memcmp(word, t->token_bytes + t->token_offsets[slot->token], n) == 0) { return slot; }
    }
}

static inline bool tokenizer_is_special(const Tokenizer *t, int32_t token) {
    return (int64_t)token - t->first < 0 || (int64_t)token - t->first >= t->ranked;
}

static inline int64_t tokenizer_token_length(const Tokenizer *t, uint32_t token) {
    return (int64_t)t->token_offsets[token + 1] - t->token_offsets[token];
}

// Returns the token of the joined bytes of left and right, or NO_TOKEN.
static inline uint32_t tokenizer_joined(const Tokenizer *t, uint32_t left, uint32_t right) {
    uint8_t bytes[2 * MAX_TOKEN_BYTES];
    size_t n = (size_t)tokenizer_token_length(t, left), more = (size_t)tokenizer_token_length(t, right);
    if (n + more > MAX_TOKEN_BYTES) { return NO_TOKEN; }
    memcpy(bytes, t->token_bytes + t->token_offsets[left], n);
    memcpy(bytes + n, t->token_bytes + t->token_offsets[right], more);
    const WordSlot *slot = tokenizer_word_slot(t, bytes, n + more);
    return slot->length != 0 ? slot->token : (uint32_t)NO_TOKEN;
}

// The slot of a merge, or the free slot where it belongs. key = left << 20 | right.
static inline MergeSlot *tokenizer_merge_slot(const Tokenizer *t, uint64_t key) {
    uint64_t i = key * 0x9e3779b97f4a7c15ULL >> (64 - t->table_bits);
    while (t->merges[i] >> 24 != key && t->merges[i] != MERGE_FREE) { i = tokenizer_next_slot(t, i); }
    return &t->merges[i];
}

// Returns the token that left and right merge to, or NO_TOKEN.
static inline uint32_t tokenizer_merged(const Tokenizer *t, uint32_t left, uint32_t right) {
    if (t->merge_rule == MERGE_BY_BYTES) { return tokenizer_joined(t, left, right); }
    return *tokenizer_merge_slot(t, (uint64_t)left << 20 | right) & NO_TOKEN;
}

static inline bool tokenizer_is_stopped(const Tokenizer *t) { return t->stop != NULL && *t->stop != 0; }

// Byte-pair encoding itself. Begins with single bytes and merges the pair of the lowest rank, the leftmost of equals,
// until no pair merges. Writes the tokens (room for n) and returns their number. ranks (n) is scratch memory. Gives up
// when it is stopped.
static inline int64_t tokenizer_merge_bytes(const Tokenizer *t, const uint8_t *bytes, int64_t n, uint32_t *tokens,
                                            uint32_t *ranks) {
    for (int64_t i = 0; i < n; i++) { tokens[i] = t->byte_ids[bytes[i]]; }
    for (int64_t i = 0; i + 1 < n; i++) { ranks[i] = t->byte_pairs[bytes[i] * 256 + bytes[i + 1]]; }
    while (n > 1 && !tokenizer_is_stopped(t)) {
        uint32_t lowest = NO_TOKEN;
        int64_t at = 0;
        for (int64_t i = 0; i + 1 < n; i++) {
            at = ranks[i] < lowest ? i : at;
            lowest = ranks[i] < lowest ? ranks[i] : lowest;
        }
        if (lowest == NO_TOKEN) { break; }
        tokens[at] = lowest;
        n--;
        for (int64_t i = at; i + 1 < n; i++) { tokens[i + 1] = tokens[i + 2], ranks[i] = ranks[i + 1]; }
        if (at > 0) { ranks[at - 1] = tokenizer_merged(t, tokens[at - 1], lowest); }
        if (at + 1 < n) { ranks[at] = tokenizer_merged(t, lowest, tokens[at + 1]); }
    }
    return n;
}

// tokenizer_merge_bytes with its own scratch memory. Returns -1 when out of memory.
static inline int64_t tokenizer_merge_window(const Tokenizer *t, const uint8_t *bytes, int64_t n, uint32_t *tokens) {
    uint32_t local[BPE_STACK], *ranks = local;
    if (n > BPE_STACK) { ranks = (uint32_t *)malloc((size_t)n * sizeof(uint32_t)); }
    if (ranks == NULL) { return -1; }
    int64_t count = tokenizer_merge_bytes(t, bytes, n, tokens, ranks);
    if (ranks != local) { free(ranks); }
    return count;
}

// Appends word[done .. done+more) to the encoding of word[0 .. done), `count` tokens; returns the new count or -1.
//
// New bytes can change the end of an encoding. So its last tokens are taken back into bytes and encoded again together
// with the new bytes. If the first of these tokens comes out unchanged, the tokens before it stay right: the bytes
// on either side of a border merge in one order, whatever is around them, until a merge crosses the border. So the
// tokens on its two sides alone decide whether one does, and none crossed it before. Otherwise more tokens are taken
// back.
static inline int64_t tokenizer_extend(const Tokenizer *t, const uint8_t *word, int64_t done, int64_t more,
                                       uint32_t *tokens, int64_t count) {
    int64_t keep = count, start = done; // tokens[0 .. keep) encode word[0 .. start)
    for (int64_t back = 4;; back *= 2) {
        for (int64_t target = max_i64(0, keep - back); keep > target;) {
            start -= tokenizer_token_length(t, tokens[--keep]);
        }
        uint32_t first = tokens[keep];
        int64_t fresh = tokenizer_merge_window(t, word + start, done + more - start, tokens + keep);
        if (fresh < 0) { return -1; }
        if (keep == 0 || tokens[keep] == first) { return keep + fresh; }
    }
}

// Copies to `kept` the bytes that have a token, and returns their number.
static inline size_t tokenizer_keep_bytes(const Tokenizer *t, const uint8_t *word, size_t bytes, uint8_t *kept) {
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        kept[n] = word[i];
        n += t->byte_ids[word[i]] != NO_TOKEN;
    }
    return n;
}

// Encodes one word. Returns the number of tokens, or -1 when out of memory or stopped. With a trained vocabulary the
// time is proportional to n, also for a word of megabytes: a new byte changes few tokens before it. A vocabulary made
// for the purpose lets a byte change all of them.
static inline int64_t tokenizer_encode_word(const Tokenizer *t, const uint8_t *word, int64_t n, uint32_t *tokens) {
    if (n <= MAX_TOKEN_BYTES) {
        const WordSlot *slot = tokenizer_word_slot(t, word, (size_t)n);
        if (slot->length != 0) {
            tokens[0] = slot->token;
            return 1;
        }
    }
    uint8_t *kept = t->lacks_bytes ? (uint8_t *)malloc((size_t)n) : NULL;
    if (t->lacks_bytes && kept == NULL) { return -1; }
    if (kept != NULL) { n = (int64_t)tokenizer_keep_bytes(t, word, (size_t)n, kept), word = kept; }
    int64_t done = min_i64(n, BPE_WINDOW), count = tokenizer_merge_window(t, word, done, tokens);
    while (done < n && count >= 0 && !tokenizer_is_stopped(t)) {
        int64_t more = min_i64(n - done, BPE_WINDOW);
        count = tokenizer_extend(t, word, done, more, tokens, count);
        done += more;
    }
    free(kept);
    return tokenizer_is_stopped(t) ? -1 : count;
}

// ---- Loading ----

static inline void tokenizer_free(Tokenizer *t) {
    free(t->token_bytes);
    free(t->token_offsets);
    free(t->merges);
    free(t->words);
    free(t->byte_pairs);
    free(t->char_classes);
    memset(t, 0, sizeof(*t));
}

// Ids 0 .. 255 are the bytes, and 256 is end-of-text.
static inline void tokenizer_init_byte(Tokenizer *t) {
    memset(t, 0, sizeof(*t));
    t->kind = TOKENIZER_BYTE;
    t->version = 2;
    t->vocab_size = 257;
    t->eot_token = t->ranked = 256;
    for (uint32_t i = 0; i < 256; i++) { t->byte_ids[i] = i; }
}

// GPT-2's ids begin with the bytes that are visible characters of Latin-1, and the others follow.
static inline bool tokenizer_byte_is_visible(int byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

// Tells whether the first 256 tokens are the bytes in GPT-2's order.
static inline bool tokenizer_has_gpt2_bytes(const Tokenizer *t) {
    uint32_t id = 0;
    for (int visible = 1; visible >= 0; visible--) {
        for (int byte = 0; byte < 256; byte++) {
            if (tokenizer_byte_is_visible(byte) != (visible == 1)) { continue; }
            if (tokenizer_token_length(t, id) != 1 || t->token_bytes[id] != byte) { return false; }
            id++;
        }
    }
    return true;
}

// Allocates the tables of the ranked tokens, empty.
static inline bool tokenizer_init_bpe(Tokenizer *t, Error *error) {
    t->kind = TOKENIZER_BPE;
    for (t->table_bits = 10; (int64_t)1 << t->table_bits < 2 * (int64_t)t->ranked;) { t->table_bits++; }
    const size_t slots = (size_t)1 << t->table_bits;
    t->merges = (MergeSlot *)malloc(slots * sizeof(MergeSlot));
    t->words = (WordSlot *)calloc(slots, sizeof(WordSlot));
    t->byte_pairs = (uint32_t *)malloc(256 * 256 * sizeof(uint32_t));
    t->char_classes = (uint8_t *)calloc(UNICODE_CODE_POINTS / 4, 1);
    if (!t->merges || !t->words || !t->byte_pairs || !t->char_classes) {
        return fail(error, "out of memory for a tokenizer");
    }
    for (size_t i = 0; i < slots; i++) { t->merges[i] = MERGE_FREE; }
    for (int i = 0; i < 256 * 256; i++) { t->byte_pairs[i] = NO_TOKEN; }
    for (int i = 0; i < 256; i++) { t->byte_ids[i] = NO_TOKEN; }
    tokenizer_init_classes(t);
    return true;
}

// Adds a token to the tables and, if tokens merge by their order, recovers its merge. Returns false if it has none.
//
// A merge joins tokens of earlier merges, so a pair with token i has a larger id than i, and the encoding of any text
// applies its merges in the order of their ids. The encoding of the bytes of token i therefore applies earlier merges
// until two tokens are left. These two tokens are merge i. This holds for every token that is the encoding of its own
// bytes. All tokens of a trained vocabulary are: a token was made between two borders that no merge had crossed, and
// the merges between these borders used only its own bytes.
static inline bool tokenizer_add_ranked(Tokenizer *t, uint32_t id) {
    uint32_t tokens[MAX_TOKEN_BYTES], ranks[MAX_TOKEN_BYTES];
    const uint8_t *bytes = t->token_bytes + t->token_offsets[id];
    const int64_t n = tokenizer_token_length(t, id);
    const WordSlot word = {tokenizer_word_head(bytes, (size_t)n), (uint32_t)n, id};
    WordSlot *slot = tokenizer_word_slot(t, bytes, (size_t)n);
    if (slot->length != 0) { return false; } // there is such a token
    *slot = word;
    if (n == 1) { t->byte_ids[bytes[0]] = id; }
    if (n > 1 && t->merge_rule == MERGE_BY_ORDER) {
        if (tokenizer_merge_bytes(t, bytes, n, tokens, ranks) != 2) { return false; }
        if (tokens[0] == NO_TOKEN || tokens[1] == NO_TOKEN) { return false; }
        const uint64_t key = (uint64_t)tokens[0] << 20 | tokens[1];
        *tokenizer_merge_slot(t, key) = key << 24 | id;
    }
    if (n == 2) { t->byte_pairs[bytes[0] * 256 + bytes[1]] = id; }
    return true;
}

// Makes the tables of the tokens that t has taken, or the byte tokenizer. A file of version 1 or 2 has GPT-2's rules,
// and all its tokens but the last, end-of-text, are ranked. After a failure the caller frees t.
static inline bool tokenizer_recover(Tokenizer *t, Error *error) {
    int last = t->vocab_size - 1, i = 0;
    const uint8_t *end = t->token_bytes + t->token_offsets[last];
    bool fits = t->version == 3 || (last >= 256 && t->eot_token == last &&
                                    tokenizer_token_length(t, (uint32_t)last) == (int64_t)strlen(END_OF_TEXT) &&
                                    memcmp(end, END_OF_TEXT, strlen(END_OF_TEXT)) == 0);
    while (fits && last == 256 && i < 256 && tokenizer_token_length(t, (uint32_t)i) == 1 && t->token_bytes[i] == i) {
        i++;
    }
    if (i == 256 && t->version == 2) {
        tokenizer_free(t);
        tokenizer_init_byte(t);
        return true;
    }
    if (fits && !tokenizer_init_bpe(t, error)) { return false; }
    fits = fits && (t->version == 3 || tokenizer_has_gpt2_bytes(t));
    for (int id = t->first; id < t->first + t->ranked && fits; id++) { fits = tokenizer_add_ranked(t, (uint32_t)id); }
    for (i = 0; i < 256 && fits; i++) { t->lacks_bytes |= t->byte_ids[i] == NO_TOKEN; }
    return (fits && !(t->lacks_bytes && t->merge_rule == MERGE_BY_BYTES)) ||
           fail(error, "its tokens are not those of a byte-pair encoding (256 bytes, one for each merge, " END_OF_TEXT
                       "); " MAKE_TOKENIZER);
}

// Gives the token of the next id its bytes. token_bytes must have room.
static inline void tokenizer_add_token(Tokenizer *t, const uint8_t *bytes, size_t n) {
    uint32_t offset = t->token_offsets[t->vocab_size];
    memcpy(t->token_bytes + offset, bytes, n);
    t->token_offsets[++t->vocab_size] = offset + (uint32_t)n;
}

// Takes the tokens of a gpt2_tokenizer.bin: for each one a length byte and so many bytes. After a failure the caller
// frees t.
static inline bool tokenizer_take_tokens(Tokenizer *t, const uint8_t *data, int64_t size, int tokens, Error *error) {
    t->token_bytes = (uint8_t *)malloc((size_t)size + 1);
    t->token_offsets = (uint32_t *)calloc((size_t)tokens + 1, sizeof(uint32_t));
    if (!t->token_bytes || !t->token_offsets) { return fail(error, "out of memory for a tokenizer"); }
    int64_t at = 0;
    for (int i = 0; i < tokens; i++) {
        if (at == size || at + 1 + data[at] > size) {
            return fail(error, "ends inside token %d of %d (truncated? fetch it again)", i, tokens);
        }
        if (data[at] == 0) { return fail(error, "token %d is empty", i); }
        tokenizer_add_token(t, data + at + 1, data[at]);
        at += 1 + data[at];
    }
    return at == size || fail(error, "%lld bytes follow the last of %d tokens", (long long)(size - at), tokens);
}

// Takes the rules of a file's header, whose end-of-text id is in the vocabulary.
static inline bool tokenizer_take_header(Tokenizer *t, const int32_t *h, Error *error) {
    t->version = h[1] == 3 ? 3 : 2;
    t->eot_token = h[1] == 1 ? 50256 : h[3];
    t->ranked = h[2] - 1;
    if (h[1] != 3) { return true; }
    t->word_rule = (WordRule)h[4], t->merge_rule = (MergeRule)h[5], t->first = h[6], t->ranked = h[7];
    if (h[4] < 0 || h[4] >= WORDS_RULES || h[5] < 0 || h[5] >= MERGE_RULES) {
        return fail(error, "cuts words by rule %d and merges by rule %d, known are 0 to 2 and 0 to 1 (damaged?)", h[4],
                    h[5]);
    }
    return (h[6] >= 0 && h[7] > 0 && h[7] <= h[2] - h[6] && tokenizer_is_special(t, t->eot_token)) ||
           fail(error, "ranks %d tokens from id %d on, of %d, whose end-of-text %d must not be one of them (damaged?)",
                h[7], h[6], h[2], h[3]);
}

// Loads a tokenizer's file: llm.c's gpt2_tokenizer.bin, or ours of version 3. Free with tokenizer_free.
static inline bool tokenizer_load(Tokenizer *t, const char *path, Error *error) {
    BinFile bin;
    uint8_t *data;
    int64_t size;
    Error reason;
    memset(t, 0, sizeof(*t));
    if (!path_check(path, "--tokenizer", error)) { return false; }
    if (!path_exists(path)) { return fail(error, "%s: no such file; " MAKE_TOKENIZER, path); }
    if (!bin_open(&bin, path, BIN_TOKENIZER, error)) { return false; }
    const int32_t *h = bin.header, tokens = h[2], eot = h[1] == 1 ? 50256 : h[3];
    if (!bin_read_rest(&bin, (int64_t)tokens * (1 + MAX_TOKEN_BYTES), &data, &size, error)) { return false; }
    bool ok = (eot >= 0 && eot < tokens) ||
              fail(&reason, "end-of-text id %d is outside the vocabulary of %d tokens", eot, tokens);
    ok = ok && tokenizer_take_header(t, h, &reason) && tokenizer_take_tokens(t, data, size, tokens, &reason) &&
         tokenizer_recover(t, &reason);
    free(data);
    if (!ok) { tokenizer_free(t); }
    return ok || fail(error, "%s: %s", path, reason.text);
}

// Opens the tokenizer that an option names: "byte" or the path of a file. Free with tokenizer_free.
static inline bool tokenizer_open(Tokenizer *t, const char *name, Error *error) {
    if (strcmp(name, "byte") != 0) { return tokenizer_load(t, name, error); }
    tokenizer_init_byte(t);
    return true;
}

// ---- Use ----

// Returns the bytes of an id, and writes their number (1 or more). Returns NULL for an id outside the vocabulary. No
// NUL follows them. They may be a part of a UTF-8 character.
static inline const uint8_t *tokenizer_decode(const Tokenizer *t, int token, int *bytes) {
    if (token < 0 || token >= t->vocab_size) { return NULL; }
    if (t->kind != TOKENIZER_BYTE) {
        *bytes = (int)tokenizer_token_length(t, (uint32_t)token);
        return t->token_bytes + t->token_offsets[token];
    }
    *bytes = token == t->eot_token ? (int)strlen(END_OF_TEXT) : 1; // below, a low byte of the id itself
    return token == t->eot_token ? (const uint8_t *)END_OF_TEXT : (const uint8_t *)&t->byte_ids[token];
}

// Returns the bytes of the text that `count` ids stand for. Special ids stand for none.
static inline int64_t tokenizer_count_bytes(const Tokenizer *t, const int32_t *tokens, int64_t count) {
    int64_t all = 0;
    for (int64_t i = 0; i < count; i++) {
        int bytes = 0;
        if (!tokenizer_is_special(t, tokens[i]) && tokenizer_decode(t, tokens[i], &bytes) != NULL) { all += bytes; }
    }
    return all;
}

// Encodes text. tokens must have room for `bytes` ids; *count is the number of ids written. Thread-safe. With
// a trained vocabulary the time is proportional to the length, whatever the text. Fails when out of memory, and when it
// is stopped.
static inline bool tokenizer_encode(const Tokenizer *t, const uint8_t *text, size_t bytes, uint32_t *tokens,
                                    int64_t *count, Error *error) {
    *count = 0;
    if (t->kind == TOKENIZER_BYTE) {
        for (size_t i = 0; i < bytes; i++) { tokens[i] = text[i]; }
        *count = (int64_t)bytes;
        return true;
    }
    for (size_t i = 0; i < bytes;) {
        size_t end = tokenizer_word_end(t, text, i, bytes);
        int64_t fresh = tokenizer_encode_word(t, text + i, (int64_t)(end - i), tokens + *count);
        if (fresh < 0 && tokenizer_is_stopped(t)) { return fail(error, "encoding was stopped"); }
        if (fresh < 0) { return fail(error, "out of memory for encoding a word of %zu bytes", end - i); }
        *count += fresh;
        i = end;
    }
    return true;
}

// tokenizer_encode on all cores: the text is cut where words end for certain.
static inline bool tokenizer_encode_parallel(const Tokenizer *t, const uint8_t *text, size_t bytes, uint32_t *tokens,
                                             int64_t *count, Error *error) {
    size_t starts[PARALLEL_JOBS + 1], step = (size_t)max_i64(PARALLEL_JOB_BYTES, (int64_t)(bytes / PARALLEL_JOBS) + 1);
    int64_t counts[PARALLEL_JOBS];
    int jobs = 0;
    for (size_t start = 0; start < bytes; start = tokenizer_next_split(t, text, start + step, bytes)) {
        starts[jobs++] = start;
    }
    starts[jobs] = bytes;
    bool ok = true;
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < jobs; i++) {
        Error local; // a part writes its tokens where its text begins: there are never more tokens than bytes
        if (!tokenizer_encode(t, text + starts[i], starts[i + 1] - starts[i], tokens + starts[i], &counts[i], &local)) {
#pragma omp critical
            ok = fail(error, "%s", local.text);
        }
    }
    *count = 0;
    for (int i = 0; i < jobs && ok; i++) {
        memmove(tokens + *count, tokens + starts[i], (size_t)counts[i] * sizeof(uint32_t));
        *count += counts[i];
    }
    return ok;
}

// ---- Copies ----

#define TOKENIZER_COPY_SUFFIX ".tokenizer" // no pattern for shards, which ends with .bin, matches it

// Writes the name of the copy that `tokenize` leaves beside the shards PREFIX_train_000001.bin and so on. Returns false
// if the shard's name has another form.
static inline bool tokenizer_beside_shard(char path[MAX_PATH_BYTES], const char *shard) {
    size_t n = strlen(shard);
    if (n > PATH_LIMIT || !ends_with(shard, ".bin")) { return false; }
    for (n -= strlen(".bin"); n > 0 && strchr("0123456789", shard[n - 1]) != NULL;) { n--; }
    path_copy(path, shard, n);
    n -= ends_with(path, "_train_") ? strlen("_train_") : ends_with(path, "_val_") ? strlen("_val_") : n;
    snprintf(path + n, MAX_PATH_BYTES - n, TOKENIZER_COPY_SUFFIX);
    return n > 0;
}

// Writes a tokenizer as a file of its version. The reader recovers the bytes and the merges.
static inline bool tokenizer_write(const Tokenizer *t, Text *text, Error *error) {
    int32_t header[DATA_HEADER_INTS] = {TOKENIZER_MAGIC, t->version, t->vocab_size, t->eot_token};
    const int32_t rules[4] = {(int32_t)t->word_rule, (int32_t)t->merge_rule, t->first, t->ranked};
    if (t->version == 3) { memcpy(header + 4, rules, sizeof(rules)); }
    text_bytes(text, (const char *)header, sizeof(header));
    for (int i = 0; i < t->vocab_size; i++) {
        int bytes = 0;
        const uint8_t *token = tokenizer_decode(t, i, &bytes);
        const char length = (char)bytes;
        text_bytes(text, &length, 1);
        text_bytes(text, (const char *)token, (size_t)bytes);
    }
    return !text->failed || fail(error, "out of memory for a copy of the tokenizer");
}

// Computes the hash of this file, by which models, shards and runs know their tokenizer again.
static inline bool tokenizer_hash(const Tokenizer *t, uint64_t *hash, Error *error) {
    Text text = {NULL, 0, 0, false};
    bool ok = tokenizer_write(t, &text, error);
    if (ok) { *hash = hash64(text.data, text.used); }
    text_free(&text);
    return ok;
}

static inline bool tokenizer_copy_to(const Tokenizer *t, const char *path, Error *error) {
    Text text = {NULL, 0, 0, false};
    bool ok = tokenizer_write(t, &text, error) && write_whole_file(path, text.data, (int64_t)text.used, 0666, error);
    text_free(&text);
    return ok;
}

#endif // LLMC_TOKENIZER_H
