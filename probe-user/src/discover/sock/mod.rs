//! Who is connected to whom, as the kernel knows it: Unix sockets by netlink `sock_diag`, TCP by `/proc/PID/net`.

pub(crate) mod connection;
pub(crate) mod netlink;
pub(crate) mod unix_diag;
