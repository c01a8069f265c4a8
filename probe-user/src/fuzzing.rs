//! Entry points for the fuzzers (`fuzz/`) to otherwise private parsers; absent from regular builds.

use adapter::discover::{FlagName, Flags};
use probe_ebpf::{Record, egress};

use crate::discover::diag_socket;
use crate::helper::request::{HelperReply, HelperRequest};
use crate::locator::answer::LocatorAnswer;
use crate::message::decode_message;
use crate::observation::Observation;
use crate::opener_client::request::{OpenDescriptor, OpenRequest, ReplyPiece};
use crate::probe::read::record_to_observation;
use crate::probe_points::{ProbePoints, Sought};
use crate::proc::{maps, net, split_nul_separated, stat};

/// Parses a record of the ring buffer. The number of its target stands for a process id.
pub fn parse_observation(item: &[u8]) -> Option<Observation<'_>> {
    if let Some(record) = egress::Record::parse(item) {
        assert!(record.payload.len() == record.head.captured as usize);
        return Some(Observation::Egress { pid: record.head.target, record });
    }
    let record = Record::parse(item)?;
    assert!(record.payload.len() <= item.len());
    Some(record_to_observation(&record, record.header.target, true))
}

/// Parses an ELF image as a library to probe.
pub fn probe_points(image: &[u8]) {
    // An error is a valid result.
    for sought in [Sought::Functions, Sought::Method(&["push_batch"])] {
        drop(ProbePoints::find_in_image(sought, image));
    }
}

/// Parses `text` as each of the kernel tables that discovery reads.
pub fn tables(text: &[u8]) {
    maps::parse_mapped_files(text);
    assert!(net::parse_tcp_table(text, 16).items.len() <= 16, "the limit is respected");
    assert!(net::parse_unix_table(text, 16).items.len() <= 16, "the limit is respected");
    stat::ProcessStat::parse(text);
    stat::parse_ns_pids(text);
    let wanted = [FlagName::switch("--stream", "--s"), FlagName::value("--mode", "--m")];
    Flags::parse(&split_nul_separated(text), &wanted);
    assert!(diag_socket::count_parsed_sockets(text) <= text.len() / 16, "every socket needs 16 bytes of input");
}

/// Parses `message` as each kind of request and reply of the processes with rights.
pub fn requests(message: &[u8]) {
    let _ = OpenRequest::parse_permitted(message);
    let _ = decode_message::<HelperRequest>(message);
    let _ = decode_message::<HelperReply>(message);
    let _ = decode_message::<LocatorAnswer>(message);
    if let Some(piece) = decode_message::<ReplyPiece>(message) {
        let _ = decode_message::<Vec<OpenDescriptor>>(&piece.content);
    }
}
