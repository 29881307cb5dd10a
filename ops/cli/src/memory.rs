//! Allocator settings.

/// Makes glibc give large pieces back when they are freed, always. Left alone, it takes the first that is freed for a sign that such
/// pieces come often, and keeps the next ones in each thread's arena: the memory of three bodies is used twice.
pub(crate) fn give_large_pieces_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code, reason = "a C function that takes two numbers; refused ones leave things as they were")]
    {
        /// A piece at least this large, in bytes, is the system's own and goes back to it when it is freed: bodies of requests, mostly.
        const LARGE: libc::c_int = 4 * 1024 * 1024;
        /// What the allocator keeps at the end of each of its areas, in bytes.
        const KEPT: libc::c_int = 16 * 1024 * 1024;
        // SAFETY: called once, before there is a second thread; the parameters are among those of mallopt(3).
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        }
    }
}
