// The unit tests: the Makefile links this with the test_*.c of all rooms, or of one.
#include "dev/test/test_main.h"

int main(int argc, char **argv) { return test_main(argc, argv); }
