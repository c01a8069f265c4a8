//! System calls by purpose. Each list has all calls of a family, since C libraries implement the same function with different calls
//! (glibc polls with `poll`, musl with `ppoll`).

use libc::c_long;

/// Memory. Their arguments are checked for executable memory.
const MEMORY: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_membarrier,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
];

/// Threads and their end. The arguments of `clone` are checked.
const THREADS: &[c_long] = &[
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_getcpu,
];

const SIGNALS: &[c_long] = &[
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigsuspend,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
];

const TIME: &[c_long] = &[
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_times,
];

/// Files. Landlock checks which ones.
const FILES: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_umask,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_utimensat,
];

/// Waiting for descriptors, and pipes between threads. The signal handler writes to a socket pair; it is the only kind of socket
/// without `socket`.
const POLLING: &[c_long] = &[
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_socketpair,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
];

/// Queries of a process about itself and its machine.
const SELF_QUERIES: &[c_long] = &[
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_getpgid,
    libc::SYS_getsid,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrusage,
    libc::SYS_getrandom,
    libc::SYS_capget,
];

/// Older calls that exist on this architecture.
#[cfg(target_arch = "x86_64")]
const LEGACY: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_unlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_time,
    libc::SYS_pause,
    libc::SYS_getpgrp,
    libc::SYS_getrlimit,
    libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY: &[c_long] = &[];

/// Calls that all kinds of work need.
pub(crate) const ALWAYS: [&[c_long]; 10] =
    [MEMORY, THREADS, SIGNALS, TIME, FILES, POLLING, SELF_QUERIES, LEGACY, SOCKET_OPTIONS, CHECKED];

/// Sockets. The arguments of `socket` are checked for the address family.
pub(crate) const SOCKETS: &[c_long] = &[
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
];

/// Options of sockets. A library may also query them for other descriptors.
const SOCKET_OPTIONS: &[c_long] = &[libc::SYS_getsockopt, libc::SYS_setsockopt];

/// Calls whose arguments the filter of forbidden calls checks.
const CHECKED: &[c_long] = &[libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_clone];

/// Observation of other processes.
pub(crate) const PROCESSES: &[c_long] =
    &[libc::SYS_pidfd_open, libc::SYS_inotify_init1, libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch];

/// Reads of the memory of other processes.
pub(crate) const MEMORY_OF_OTHERS: &[c_long] = &[libc::SYS_process_vm_readv];

/// Waiting for other processes, signals to them, their descriptors, and owners of files.
pub(crate) const MOVES: &[c_long] = &[
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_kill,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setsid,
];

/// Calls that tokengap never makes but an attacker in the process might: other programs, memory of other processes, settings of the
/// kernel.
pub(crate) const FORBIDDEN: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_userfaultfd,
    libc::SYS_memfd_create,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_mknodat,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_personality,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_fanotify_init,
    libc::SYS_vhangup,
];

/// As [`FORBIDDEN`], for older calls that exist on this architecture.
#[cfg(target_arch = "x86_64")]
pub(crate) const FORBIDDEN_LEGACY: &[c_long] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_mknod,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_kexec_file_load,
];
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const FORBIDDEN_LEGACY: &[c_long] = &[];

/// Calls that [`crate::Work::Files`] never makes, unlike other kinds of work.
pub(crate) const FORBIDDEN_FOR_FILES: &[c_long] =
    &[libc::SYS_socket, libc::SYS_connect, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4];

/// Calls for the observation of other processes.
pub(crate) const FORBIDDEN_UNLESS_OBSERVER: &[c_long] = &[libc::SYS_pidfd_open, libc::SYS_process_vm_readv];

/// Calls that attach programs to processes and use their tables. The namespaces of `setns` are checked.
pub(crate) const FORBIDDEN_UNLESS_ATTACHER: &[c_long] = &[libc::SYS_bpf, libc::SYS_perf_event_open];

/// Calls that [`crate::Work::Attach`] never makes, unlike other observers. Its only sockets are of netlink.
pub(crate) const FORBIDDEN_FOR_ATTACHER: &[c_long] = &[
    libc::SYS_process_vm_readv,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
];

/// Calls that only [`crate::Work::Open`] makes, to open a file with the rights of another user.
pub(crate) const FORBIDDEN_UNLESS_OPENER: &[c_long] =
    &[libc::SYS_setgroups, libc::SYS_setfsuid, libc::SYS_setfsgid, libc::SYS_capset];

/// Calls on other processes that [`crate::Work::Memory`] and [`crate::Work::Open`] never make.
pub(crate) const FORBIDDEN_FOR_READERS: &[c_long] = &[libc::SYS_pidfd_open];

/// Calls that only [`crate::Work::Move`] makes.
pub(crate) const FORBIDDEN_UNLESS_MOVE: &[c_long] =
    &[libc::SYS_pidfd_getfd, libc::SYS_pidfd_send_signal, libc::SYS_fchown, libc::SYS_fchownat];
