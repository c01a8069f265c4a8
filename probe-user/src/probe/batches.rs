//! Probe points that each feature needs in a library, by program.

use probe_ebpf::{Cookie, ProbePoint};

use crate::probe_points::{ProbePoints, ProbePointsError};
use crate::programs::{
    Batch, MessagePoints, POLL_ENTERED, POLL_LEFT, PointSet, Points, TLS_ENTERED, TLS_RETURNED, ZMQ, ZMQ_RETURNED,
};

/// A set of probe points of a target in one library.
pub(crate) fn of_set(set: PointSet, found: &ProbePoints, target: u32) -> Result<Vec<Batch>, ProbePointsError> {
    match set {
        PointSet::Messages(wanted) => messages(found, target, wanted),
        PointSet::Polls { with_returns } => polls(found, target, with_returns),
        PointSet::Tls => tls(found, target),
        PointSet::Method => Ok(found.method.map(|entry| method(entry, target)).unwrap_or_default()),
    }
}

/// Probe points in libzmq. Entries come before returns, so that no return lacks its entry.
pub(crate) fn messages(
    probe_points: &ProbePoints,
    target: u32,
    wanted: MessagePoints,
) -> Result<Vec<Batch>, ProbePointsError> {
    let (mut entries, mut returns) = (Points::new(), Points::new());
    let at = |probe_point| Cookie::new(probe_point, target);
    let (recv, send) = (probe_points.entry("zmq_msg_recv")?, probe_points.entry("zmq_msg_send")?);
    if let Some(done) = probe_points.received {
        let cookie = Cookie::received(target, done.socket, done.message);
        if let Some(waits) = probe_points.waits.filter(|_| wanted.processed) {
            // A receive that does not wait never reaches `waits`, so its completion marks the previous message as processed.
            entries.push((done.at, cookie.and_processed()));
            entries.push((waits.at, Cookie::within(ProbePoint::Waits, target, waits.socket)));
        } else {
            entries.push((done.at, cookie));
            if wanted.processed {
                entries.push((recv, at(ProbePoint::Recv)));
            }
        }
    } else {
        entries.push((recv, at(ProbePoint::Recv).and_return()));
        returns.push((recv, at(ProbePoint::RecvReturn)));
    }
    if let Some(refused) = probe_points.refused {
        entries.push((send, at(ProbePoint::Send)));
        entries.push((refused.at, Cookie::within(ProbePoint::Refused, target, refused.socket)));
    } else {
        entries.push((send, at(ProbePoint::Send).and_return()));
        returns.push((send, at(ProbePoint::SendReturn)));
    }
    if wanted.processed {
        entries.push(match probe_points.option_request {
            Some(request) => (request.at, Cookie::within(ProbePoint::OptionAsked, target, request.socket)),
            None => (probe_points.entry("zmq_getsockopt")?, at(ProbePoint::Option)),
        });
    }
    if wanted.buffers {
        for (symbol, entered, returned) in [
            ("zmq_recv", ProbePoint::BufferRecv, ProbePoint::BufferRecvReturn),
            ("zmq_send", ProbePoint::BufferSend, ProbePoint::SendReturn),
            ("zmq_send_const", ProbePoint::BufferSend, ProbePoint::SendReturn),
        ] {
            let entry = probe_points.entry(symbol)?;
            entries.push((entry, at(entered).and_return()));
            returns.push((entry, at(returned)));
        }
    }
    Ok(batches([(ZMQ, false, entries), (ZMQ_RETURNED, true, returns)]))
}

/// Probe points of the method that passes messages to a server in the same process.
fn method(entry: u64, target: u32) -> Vec<Batch> {
    let called = vec![(entry, Cookie::new(ProbePoint::Method, target).and_return())];
    let returned = vec![(entry, Cookie::new(ProbePoint::MethodReturn, target))];
    batches([(ZMQ, false, called), (ZMQ_RETURNED, true, returned)])
}

/// Probe points in libc. If no scheduler program measures the time in a poll, they include the returns of polls. Return probes are attached
/// first; the return of a poll whose entry was not observed is ignored.
pub(crate) fn polls(
    probe_points: &ProbePoints,
    target: u32,
    with_returns: bool,
) -> Result<Vec<Batch>, ProbePointsError> {
    let at = |probe_point| Cookie::new(probe_point, target);
    let epolls = [probe_points.entry("epoll_wait")?, probe_points.entry("epoll_pwait")?];
    let (entered, returns) = if with_returns {
        let returns = epolls.map(|entry| (entry, at(ProbePoint::EpollReturn)));
        (at(ProbePoint::Epoll).and_return(), returns.to_vec())
    } else {
        (at(ProbePoint::Epoll), Points::new())
    };
    let mut entries = epolls.map(|entry| (entry, entered)).to_vec();
    entries.push((probe_points.entry("poll")?, at(ProbePoint::Poll)));
    Ok(batches([(POLL_LEFT, true, returns), (POLL_ENTERED, false, entries)]))
}

/// Probe points in OpenSSL. Return probes are attached first; the return of a write whose entry was not observed is ignored.
fn tls(probe_points: &ProbePoints, target: u32) -> Result<Vec<Batch>, ProbePointsError> {
    let at = |symbol, probe_point| {
        let entry = probe_points.entry(symbol);
        entry.map(|entry| (entry, Cookie::new(probe_point, target)))
    };
    let writes = if let Some(inner) = probe_points.tls_write {
        vec![(inner, Cookie::new(ProbePoint::TlsWriteEx, target))]
    } else {
        let mut writes = vec![at("SSL_write", ProbePoint::TlsWrite)?];
        // OpenSSL 1.1.1 and later.
        writes.extend(at("SSL_write_ex", ProbePoint::TlsWriteEx).ok());
        writes
    };
    let mut entries = vec![at("SSL_free", ProbePoint::TlsFree)?];
    entries.extend(&writes);
    Ok(batches([(TLS_RETURNED, true, writes), (TLS_ENTERED, false, entries)]))
}

fn batches<const N: usize>(parts: [(&'static str, bool, Points); N]) -> Vec<Batch> {
    let filled = parts.into_iter().filter(|(.., points)| !points.is_empty());
    filled.map(|(program, returns, points)| Batch { program, returns, points }).collect()
}
