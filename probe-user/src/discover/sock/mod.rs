//! Connections as the kernel reports them: Unix sockets through netlink `sock_diag`, TCP through `/proc/PID/net`.

pub(crate) mod connection;
pub(crate) mod diag;
