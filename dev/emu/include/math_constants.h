// The constants of CUDA's header of this name that programs use.
#ifndef EMU_MATH_CONSTANTS_H
#define EMU_MATH_CONSTANTS_H

#include <math.h>

#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_PI_F 3.141592654f
#define CUDART_PIO2_F 1.570796327f
#define CUDART_SQRT_TWO_F 1.414213562f
#define CUDART_L2E_F 1.442695041f
#define CUDART_INF (static_cast<double>(INFINITY))
#define CUDART_NAN (static_cast<double>(NAN))
#define CUDART_PI 3.1415926535897931

#endif // EMU_MATH_CONSTANTS_H
