// cooperative_groups::reduce: every thread of a tile gets op over the values of all of them.
#ifndef EMU_COOPERATIVE_GROUPS_REDUCE_H
#define EMU_COOPERATIVE_GROUPS_REDUCE_H

#include "../cooperative_groups.h"

namespace cooperative_groups {

#define EMU_GROUP_OPERATION(name, expression)                                                                          \
    template <class T> struct name {                                                                                   \
        T operator()(T a, T b) const { return expression; }                                                            \
    };
EMU_GROUP_OPERATION(plus, a + b)
EMU_GROUP_OPERATION(less, b < a ? b : a)
EMU_GROUP_OPERATION(greater, a < b ? b : a)
EMU_GROUP_OPERATION(bit_and, a &b)
EMU_GROUP_OPERATION(bit_or, a | b)
EMU_GROUP_OPERATION(bit_xor, a ^ b)
#undef EMU_GROUP_OPERATION

template <class Tile, class T, class Operation> inline T reduce(const Tile &tile, T value, Operation &&op, EMU_HERE) {
    for (unsigned distance = tile.size() / 2; distance > 0; distance /= 2) {
        value = op(value, tile.shfl_xor(value, distance, file, line));
    }
    return value;
}

} // namespace cooperative_groups

#endif // EMU_COOPERATIVE_GROUPS_REDUCE_H
