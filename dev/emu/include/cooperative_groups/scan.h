// cooperative_groups::inclusive_scan and exclusive_scan: a thread gets op over the values of the ranks up to its own,
// or below its own. The exclusive scan of rank 0 is T().
#ifndef EMU_COOPERATIVE_GROUPS_SCAN_H
#define EMU_COOPERATIVE_GROUPS_SCAN_H

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

template <class Group, class T, class Operation>
inline T inclusive_scan(const Group &group, T value, Operation &&op, EMU_HERE) {
    for (unsigned distance = 1; distance < group.size(); distance *= 2) {
        T earlier = group.shfl_up(value, distance, file, line);
        if (group.thread_rank() >= distance) { value = op(earlier, value); }
    }
    return value;
}
template <class Group, class T> inline T inclusive_scan(const Group &group, T value, EMU_HERE) {
    return inclusive_scan(group, value, plus<T>(), file, line);
}
template <class Group, class T, class Operation>
inline T exclusive_scan(const Group &group, T value, Operation &&op, EMU_HERE) {
    T below = group.shfl_up(inclusive_scan(group, value, op, file, line), 1, file, line);
    return group.thread_rank() == 0 ? T() : below;
}
template <class Group, class T> inline T exclusive_scan(const Group &group, T value, EMU_HERE) {
    return exclusive_scan(group, value, plus<T>(), file, line);
}

} // namespace cooperative_groups

#endif // EMU_COOPERATIVE_GROUPS_SCAN_H
