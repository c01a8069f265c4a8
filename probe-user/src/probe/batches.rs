//! Probe points that each feature needs in a library, by program.

use probe_ebpf::{Cookie, ProbePoint};

use crate::probe_points::{ProbePoints, ProbePointsError};
use crate::programs::{
    ACCEPT_RETURNED, Batch, MessagePoints, POLL_ENTERED, POLL_RETURNED, PointSet, Points, TLS_ENTERED, TLS_RETURNED,
    ZMQ_ENTERED, ZMQ_RETURNED,
};

/// Batches that attach this set of a library's probe points for the target with this index.
pub(crate) fn batches_of_set(
    set: PointSet,
    found: &ProbePoints,
    target_index: u32,
) -> Result<Vec<Batch>, ProbePointsError> {
    match set {
        PointSet::Messages(wanted) => message_batches(found, target_index, wanted),
        PointSet::Polls { with_returns } => poll_batches(found, target_index, with_returns),
        PointSet::Accepts => accept_batches(found, target_index),
        PointSet::Tls => tls_batches(found, target_index),
        PointSet::Method => Ok(found.method.map(|entry| method_batches(entry, target_index)).unwrap_or_default()),
    }
}

/// Batches of the probe points in libzmq that show sends and receives. A batch is a program with its points. Entries come before returns,
/// so that no return lacks its entry.
pub(crate) fn message_batches(
    probe_points: &ProbePoints,
    target_index: u32,
    wanted: MessagePoints,
) -> Result<Vec<Batch>, ProbePointsError> {
    let mut probes =
        MessageProbes { found: probe_points, target_index, entries: Points::new(), returns: Points::new() };
    probes.add_receive_probes(wanted.processed)?;
    probes.add_send_probes()?;
    if wanted.processed {
        probes.add_option_request_probe()?;
    }
    if wanted.buffers {
        probes.add_buffer_call_probes()?;
    }
    let MessageProbes { entries, returns, .. } = probes;
    Ok(non_empty([Batch::at_entries(ZMQ_ENTERED, entries), Batch::at_returns(ZMQ_RETURNED, returns)]))
}

/// Probe points in libzmq for one target. The cookie of each tells the program which point it runs at, and for which target.
struct MessageProbes<'p> {
    found: &'p ProbePoints,
    target_index: u32,
    /// Points at entries, or inside functions.
    entries: Points,
    /// Functions whose returns are probed.
    returns: Points,
}

impl MessageProbes<'_> {
    /// Adds the probes of receives. One point inside `zmq_msg_recv` has the result. In code that is not understood, entry and return of the
    /// function replace it. `with_processed`: also observe when a message is processed, which is when the next one is requested.
    fn add_receive_probes(&mut self, with_processed: bool) -> Result<(), ProbePointsError> {
        let target_index = self.target_index;
        let recv = self.found.entry_offset_of("zmq_msg_recv")?;
        let Some(completed) = self.found.received else {
            self.add_entry_and_return_probes(recv, ProbePoint::Recv, ProbePoint::RecvReturn);
            return Ok(());
        };
        let on_completion = Cookie::received(target_index, completed.socket, completed.message);
        if !with_processed {
            self.entries.push((completed.at, on_completion));
            return Ok(());
        }
        if let Some(waits) = self.found.waits {
            // A receive that must wait marks the previous message as processed at `waits`, and any other one at its completion.
            self.entries.push((completed.at, on_completion.and_processed()));
            self.entries.push((waits.at, Cookie::within(ProbePoint::Waits, target_index, waits.socket)));
        } else {
            // Without that point, every receive marks the previous message as processed when it begins.
            self.entries.push((completed.at, on_completion));
            self.entries.push((recv, Cookie::new(ProbePoint::Recv, target_index)));
        }
        Ok(())
    }

    /// Adds the probes of sends. Only refused sends reach the second point. In code that is not understood, the return of the function
    /// replaces it.
    fn add_send_probes(&mut self) -> Result<(), ProbePointsError> {
        let send = self.found.entry_offset_of("zmq_msg_send")?;
        let Some(refused) = self.found.refused else {
            self.add_entry_and_return_probes(send, ProbePoint::Send, ProbePoint::SendReturn);
            return Ok(());
        };
        self.entries.push((send, Cookie::new(ProbePoint::Send, self.target_index)));
        self.entries.push((refused.at, Cookie::within(ProbePoint::Refused, self.target_index, refused.socket)));
        Ok(())
    }

    /// Adds the probe of the option that pyzmq reads before it requests the next message.
    fn add_option_request_probe(&mut self) -> Result<(), ProbePointsError> {
        let point = match self.found.option_request {
            Some(request) => (request.at, Cookie::within(ProbePoint::OptionAsked, self.target_index, request.socket)),
            // In code that is not understood, the reads of all options are probed.
            None => (self.found.entry_offset_of("zmq_getsockopt")?, Cookie::new(ProbePoint::Option, self.target_index)),
        };
        self.entries.push(point);
        Ok(())
    }

    /// Adds the probes of the functions that send and receive plain buffers instead of messages.
    fn add_buffer_call_probes(&mut self) -> Result<(), ProbePointsError> {
        for (symbol, entered, returned) in [
            ("zmq_recv", ProbePoint::BufferRecv, ProbePoint::BufferRecvReturn),
            ("zmq_send", ProbePoint::BufferSend, ProbePoint::SendReturn),
            ("zmq_send_const", ProbePoint::BufferSend, ProbePoint::SendReturn),
        ] {
            let function = self.found.entry_offset_of(symbol)?;
            self.add_entry_and_return_probes(function, entered, returned);
        }
        Ok(())
    }

    /// Adds probes at the entry and at the return of a function.
    fn add_entry_and_return_probes(&mut self, function: u64, entered: ProbePoint, returned: ProbePoint) {
        // `and_return` tells the program at the entry that the return has a probe, too.
        self.entries.push((function, Cookie::new(entered, self.target_index).and_return()));
        self.returns.push((function, Cookie::new(returned, self.target_index)));
    }
}

/// Probe points of the method that passes messages to a server in the same process.
fn method_batches(entry_offset: u64, target_index: u32) -> Vec<Batch> {
    // `and_return` tells the program at the entry that the return has a probe, too.
    let called = vec![(entry_offset, Cookie::new(ProbePoint::Method, target_index).and_return())];
    let returned = vec![(entry_offset, Cookie::new(ProbePoint::MethodReturn, target_index))];
    vec![Batch::at_entries(ZMQ_ENTERED, called), Batch::at_returns(ZMQ_RETURNED, returned)]
}

/// Batches of the probe points in libc that show when a process polls. A batch is a program with its points. `with_returns`: also probe the
/// returns of polls. That is needed if no scheduler program measures the time in a poll.
pub(crate) fn poll_batches(
    probe_points: &ProbePoints,
    target_index: u32,
    with_returns: bool,
) -> Result<Vec<Batch>, ProbePointsError> {
    let epolls = [probe_points.entry_offset_of("epoll_wait")?, probe_points.entry_offset_of("epoll_pwait")?];
    // A cookie tells the program which point it runs at, and for which target.
    let mut epoll_entered = Cookie::new(ProbePoint::Epoll, target_index);
    let mut returns = Points::new();
    if with_returns {
        // Tells the program at the entry that the return has a probe, too.
        epoll_entered = epoll_entered.and_return();
        returns.extend(epolls.map(|entry| (entry, Cookie::new(ProbePoint::EpollReturn, target_index))));
    }
    let mut entries = epolls.map(|entry| (entry, epoll_entered)).to_vec();
    entries.push((probe_points.entry_offset_of("poll")?, Cookie::new(ProbePoint::Poll, target_index)));
    // The returns are attached first, because the program ignores the return of a poll whose entry it has not seen.
    Ok(non_empty([Batch::at_returns(POLL_RETURNED, returns), Batch::at_entries(POLL_ENTERED, entries)]))
}

/// Probe points in libc at the returns of the calls that accept connections.
fn accept_batches(probe_points: &ProbePoints, target_index: u32) -> Result<Vec<Batch>, ProbePointsError> {
    let cookie = Cookie::new(ProbePoint::AcceptReturn, target_index);
    let returns = [probe_points.entry_offset_of("accept")?, probe_points.entry_offset_of("accept4")?]
        .map(|entry| (entry, cookie));
    Ok(vec![Batch::at_returns(ACCEPT_RETURNED, returns.to_vec())])
}

/// Entries of OpenSSL's functions that write. Each has a cookie, which tells the program where it runs, and for which target. If the inner
/// function was found that both `SSL_write` and `SSL_write_ex` call, its entry is enough. Otherwise both are probed.
fn tls_write_points(probe_points: &ProbePoints, target_index: u32) -> Result<Points, ProbePointsError> {
    let tls_write_ex = Cookie::new(ProbePoint::TlsWriteEx, target_index);
    if let Some(inner) = probe_points.tls_write {
        return Ok(vec![(inner, tls_write_ex)]);
    }
    let mut writes =
        vec![(probe_points.entry_offset_of("SSL_write")?, Cookie::new(ProbePoint::TlsWrite, target_index))];
    // Older releases than OpenSSL 1.1.1 do not have it.
    if let Ok(entry) = probe_points.entry_offset_of("SSL_write_ex") {
        writes.push((entry, tls_write_ex));
    }
    Ok(writes)
}

/// Probe points in OpenSSL. Return probes are attached first, because the return of a write whose entry was not observed is ignored.
fn tls_batches(probe_points: &ProbePoints, target_index: u32) -> Result<Vec<Batch>, ProbePointsError> {
    let writes = tls_write_points(probe_points, target_index)?;
    let mut entries = vec![(probe_points.entry_offset_of("SSL_free")?, Cookie::new(ProbePoint::TlsFree, target_index))];
    entries.extend(&writes);
    Ok(non_empty([Batch::at_returns(TLS_RETURNED, writes), Batch::at_entries(TLS_ENTERED, entries)]))
}

/// The batches that have probe points.
fn non_empty<const N: usize>(batches: [Batch; N]) -> Vec<Batch> {
    batches.into_iter().filter(|batch| !batch.points.is_empty()).collect()
}
