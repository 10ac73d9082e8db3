// cooperative_groups::reduce: every thread of a group gets op over the values of all of them.
#ifndef EMU_COOPERATIVE_GROUPS_REDUCE_H
#define EMU_COOPERATIVE_GROUPS_REDUCE_H

#include "scan.h"

namespace cooperative_groups {

template <class Group, class T, class Operation>
inline T reduce(const Group &group, T value, Operation &&op, EMU_HERE) {
    return group.shfl(inclusive_scan(group, value, op, file, line), group.size() - 1, file, line);
}

} // namespace cooperative_groups

#endif // EMU_COOPERATIVE_GROUPS_REDUCE_H
