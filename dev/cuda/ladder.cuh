// What the ladders of this folder share. A ladder is a layer in several versions, from the naive one to the one in
// llmc/. Each version runs, is compared with the CPU trainer's function, and gets a row of a table.
//
//   ladder_layernorm                all versions of each layer in the file
//   ladder_layernorm --ends         only the first and the last version of each
//   ladder_layernorm --all-columns  with the columns that the page leaves out
#ifndef LADDER_CUH
#define LADDER_CUH

#ifdef GPT2_EMU
#include "dev/cuda/row_meter.cuh"
#else
#include "dev/cuda/row_time.cuh"
#endif

class Ladder {
  public:
    Ladder(int argc, char **argv)
        : only_ends(argc == 2 && strcmp(argv[1], "--ends") == 0),
          all_columns(argc == 2 && strcmp(argv[1], "--all-columns") == 0) {
        if (argc > 1 && !only_ends && !all_columns) {
            fprintf(stderr, "%s: unknown argument '%s', expected --ends, --all-columns or nothing\n", argv[0],
                    argv[argc - 1]);
            exit(EXIT_FAILURE);
        }
    }

    // Begins the table of a layer. The versions that are added after it are its versions.
    void layer(const Layer &next) {
        end_layer();
        now = next;
    }

    // Adds a version. run launches its kernels. end_layer() calls run while everything that run refers to must live.
    void version(const std::string &name, const std::function<void()> &run) { versions.push_back({name, run}); }

    // Runs and prints the layer's versions.
    void end_layer() {
        seconds_before = 0.0;
        for (size_t i = 0; i < versions.size(); i++) {
            if (i == 0) { print_head(); }
            if (!only_ends || i == 0 || i + 1 == versions.size()) { run_version((int)i + 1, versions[i]); }
            if (i + 1 == versions.size()) { printf("\n"); }
        }
        versions.clear();
    }

    // Ends the last layer. Returns the exit status of the program.
    int end() {
        end_layer();
        return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    }

  private:
    struct Version {
        std::string name;
        std::function<void()> run;
    };

    Layer now;
    std::vector<Version> versions;
    double seconds_before = 0.0; // of the version before; 0: there is none
    bool only_ends, all_columns;
    int failures = 0;

    // Is this a column of the table? That of GPT-2's shape needs a layer with such a bound.
    bool shows(const Column &column) const {
        return (column.always || all_columns) && (column.name != ladder_real || now.real.name != "");
    }

    void print_head() {
        std::string names, dashes;
        for (const Column &column : ladder_columns) {
            if (!shows(column)) { continue; }
            names += format(" %*s |", column.width, column.name);
            dashes += std::string((size_t)abs(column.width) + 2, '-') + "|";
        }
        printf("%s\n\n|%s\n|%s\n", ladder_caption(now).c_str(), names.c_str(), dashes.c_str());
    }

    void print_row(std::vector<std::string> cells) {
        printf("|");
        for (size_t i = 0; i < cells.size(); i++) {
            if (shows(ladder_columns[i])) { printf(" %*s |", ladder_columns[i].width, cells[i].c_str()); }
        }
        printf("\n");
        fflush(stdout);
    }

    void run_version(int number, const Version &version) {
        Test t;
        memset(&t, 0, sizeof(t));
        now.clear();
        ladder_run(version.run);
        now.check(&t);
        if (t.failures > 0) {
            fprintf(stderr, "%s, version %d (%s): differs from the CPU's function\n", now.name.c_str(), number,
                    version.name.c_str());
            failures++;
        }
        Row row = ladder_row(now, version.run);
        row.cells.insert(row.cells.begin(), format("%d %s", number, version.name.c_str()));
        row.cells.push_back(ladder_cell("%.2f", seconds_before / row.seconds, seconds_before > 0.0));
        print_row(row.cells);
        seconds_before = row.seconds;
    }
};

#endif // LADDER_CUH
