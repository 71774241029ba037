//! The small safe layer over io_uring and aligned buffers: the one place with unsafe code.
