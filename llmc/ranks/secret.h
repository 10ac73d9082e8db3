// The secret that the processes of a run share. With it the two ends of a new connection prove to each other that they
// belong to one run, before anything else that they say is believed. Who only reaches the port proves nothing.
//
//   caller   HELLO       its nonce (random bytes that nobody has used before)
//   rank 0   CHALLENGE   proof, its own nonce, its protocol
//   caller   JOIN        proof, its protocol, who it is
//   proof = HMAC-SHA256(secret, words that name this use | who speaks | both nonces | the rest of the frame)
//
// MPI and the folder start make a secret of their own (rendezvous.h). A TCP start takes the user's. Without one the key
// is zeros, which prove nothing, and rendezvous.h keeps such a start on the loopback address. The proof covers the
// start only: what follows is neither encrypted nor signed.
#ifndef LLMC_SECRET_H
#define LLMC_SECRET_H

#include "llmc/base/input_file.h"
#include "llmc/ranks/hmac.h"

#define SECRET_VARIABLE "GPT2C_SECRET"
#define SECRET_LEAST 32  // characters
#define SECRET_MOST 4096 // bytes of a file
#define SECRET_REMEDY                                                                                                  \
    "give all processes one secret: the output of 'openssl rand -hex 32' in " SECRET_VARIABLE ", or in a file that "   \
    "--secret-file names (mode 600)"

typedef struct {
    bool known;
    uint8_t key[SHA256_BYTES];
} CommSecret;

typedef struct {
    uint8_t caller[SHA256_BYTES], zero[SHA256_BYTES]; // zero: rank 0's
} CommNonces;

typedef enum { SPEAKS_CALLER = 'c', SPEAKS_ZERO = 'z' } CommSpeaker;

// ---- Proofs ----

// Computes the proof for what `speaker` says.
static inline void secret_prove(const CommSecret *secret, const CommNonces *nonces, CommSpeaker speaker,
                                const void *said, size_t bytes, uint8_t proof[SHA256_BYTES]) {
    const char use[] = "gpt2.c, start of a run";
    uint8_t who = (uint8_t)speaker;
    HmacSha256 code;
    hmac_init(&code, secret->key, sizeof(secret->key));
    sha256_update(&code.inner, use, sizeof(use));
    sha256_update(&code.inner, &who, sizeof(who));
    sha256_update(&code.inner, nonces->caller, sizeof(nonces->caller));
    sha256_update(&code.inner, nonces->zero, sizeof(nonces->zero));
    sha256_update(&code.inner, said, bytes);
    hmac_final(&code, proof);
}

// Tells whether a message, which begins with its proof, comes from a process that knows the secret.
static inline bool secret_is_proven(const CommSecret *secret, const CommNonces *nonces, CommSpeaker speaker,
                                    const void *message, size_t bytes) {
    uint8_t proof[SHA256_BYTES];
    if (bytes < sizeof(proof)) { return false; }
    secret_prove(secret, nonces, speaker, (const uint8_t *)message + sizeof(proof), bytes - sizeof(proof), proof);
    return secret_equal(proof, message, sizeof(proof));
}

// ---- Where the secret comes from ----

static inline bool secret_make(CommSecret *secret, Error *error) {
    secret->known = true;
    return secret_random(secret->key, sizeof(secret->key), error);
}

// Takes a text as the secret. what: begins the message, which must not repeat the text.
static inline bool secret_take(CommSecret *secret, const char *what, const char *text, size_t bytes, Error *error) {
    while (bytes > 0 && (text[bytes - 1] == '\n' || text[bytes - 1] == '\r')) { bytes--; }
    if (bytes < SECRET_LEAST) {
        return fail(error, "%s: has %zu characters, expected at least %d, as 'openssl rand -hex 32' prints", what,
                    bytes, SECRET_LEAST);
    }
    secret->known = true;
    sha256(text, bytes, secret->key);
    return true;
}

// Reads a file that only this user has written and may read, with a NUL at its end. *bytes: SECRET_MOST at most.
static inline bool secret_read_file(const char *path, char text[SECRET_MOST + 1], size_t *bytes, Error *error) {
    InputFile file;
    struct stat info;
    if (!input_open(&file, path, error)) { return false; }
    bool ok = fstat(file.fd, &info) == 0 || fail_system(error, path, "read");
    ok = ok && (info.st_uid == geteuid() || fail(error, "%s: belongs to user %ld, expected %ld, who runs this process",
                                                 path, (long)info.st_uid, (long)geteuid()));
    ok = ok && ((info.st_mode & 077) == 0 || fail(error, "%s: others may use it (mode %03o), expected 600: chmod 600",
                                                  path, (unsigned)(info.st_mode & 0777)));
    *bytes = (size_t)min_i64(file.size, SECRET_MOST);
    ok = ok && input_read(&file, 0, text, (int64_t)*bytes, error);
    text[*bytes] = '\0';
    input_close(&file);
    return ok;
}

// Finds the user's secret: in a file, if one is named, or in the environment, from where it is removed. Neither is no
// error: the secret is then not known.
static inline bool secret_find(CommSecret *secret, const char *file, Error *error) {
    char text[SECRET_MOST + 1];
    const char *variable = getenv(SECRET_VARIABLE);
    size_t bytes;
    memset(secret, 0, sizeof(*secret));
    if (file != NULL && file[0] != '\0') {
        return secret_read_file(file, text, &bytes, error) && secret_take(secret, file, text, bytes, error);
    }
    if (variable == NULL) { return true; }
    bool ok = secret_take(secret, SECRET_VARIABLE, variable, strlen(variable), error);
    unsetenv(SECRET_VARIABLE);
    return ok;
}

#endif // LLMC_SECRET_H
