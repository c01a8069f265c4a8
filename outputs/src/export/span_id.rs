//! Trace and span ids. Exporting a capture twice gives the same ids.
//!
//! A request whose head names a trace of its caller joins it. Otherwise, a rid that consists of 32 hex
//! digits (a UUID) can be a trace id. Behind Dynamo 0.8.0 to 1.5.0 with tracing it *is* the W3C trace id of the request.
//! Such a rid is used unchanged, so that the spans join those of the frontend.

use trace::event::TraceParent;

/// Origin of a trace id that the caller of a request has sent.
const FROM_CALLER: &str = "traceparent";

pub(super) struct TraceId {
    /// 32 lower-case hex digits, not all zero.
    pub(super) hex: String,
    /// Origin: `traceparent`, `rid` or `hash`.
    pub(super) from: &'static str,
}

impl TraceId {
    /// Trace of a request: that of its caller. Without one, the request id if it has the form of a trace id, else a hash of the request id.
    pub(super) fn of_request(rid: &str, trace_parent: Option<TraceParent>, first_wall_ns: u64) -> Self {
        if let Some(parent) = trace_parent {
            return Self { hex: parent.trace_id(), from: FROM_CALLER };
        }
        let undashed: String = rid.chars().filter(|&c| c != '-').map(|c| c.to_ascii_lowercase()).collect();
        let dashes = rid.len() - undashed.len();
        // A UUID has 32 hexadecimal digits, and is written with four dashes or without any.
        let is_uuid =
            undashed.len() == 32 && (dashes == 0 || dashes == 4) && undashed.bytes().all(|b| b.is_ascii_hexdigit());
        // A trace id of zeros is invalid.
        let is_zero = undashed.bytes().all(|digit| digit == b'0');
        if is_uuid && !is_zero {
            return Self { hex: undashed, from: "rid" };
        }
        Self::hash_of_name_and_time(rid, first_wall_ns)
    }

    /// Trace of a capture, from a hash of its source and the time at which it began.
    pub(super) fn of_capture(source: &str, began_wall_ns: u64) -> Self {
        Self::hash_of_name_and_time(source, began_wall_ns)
    }

    /// Trace id that is a hash of a name and a time.
    fn hash_of_name_and_time(name: &str, wall_ns: u64) -> Self {
        let high = mix_bits(hash_bytes(name.as_bytes(), wall_ns));
        // The other half must not be a copy of the first. Any constant would do, and this is the increment of `SplitMix64`.
        let low = mix_bits(high ^ 0x9e37_79b9_7f4a_7c15);
        // At least 1, since a trace id of zeros is invalid.
        let low = low.max(1);
        Self { hex: format!("{high:016x}{low:016x}"), from: "hash" }
    }
}

/// Span ids of one request. A reused rid within a trace gets different ones.
pub(super) struct SpanIds {
    seed: u64,
    /// Number of ids that were returned so far.
    ids_given: u64,
}

impl SpanIds {
    /// Ids within a trace. Those of another time differ.
    pub(super) fn of_trace(trace: &TraceId, first_wall_ns: u64) -> Self {
        Self { seed: hash_bytes(trace.hex.as_bytes(), first_wall_ns), ids_given: 0 }
    }

    /// Ids within the trace of a request. Other requests in the same trace get other ids.
    pub(super) fn of_request(trace: &TraceId, rid: &str, first_wall_ns: u64) -> Self {
        let ids = Self::of_trace(trace, first_wall_ns);
        // Any other trace has only this request.
        if trace.from != FROM_CALLER {
            return ids;
        }
        // The trace of a caller may have several requests, whose ids must differ.
        Self { seed: hash_bytes(rid.as_bytes(), ids.seed), ids_given: 0 }
    }

    /// Next span id: 16 hex digits, not all zero.
    pub(super) fn next_id(&mut self) -> String {
        self.ids_given += 1;
        let id = mix_bits(self.seed.wrapping_add(self.ids_given));
        // At least 1, since an id of zeros is invalid.
        format!("{:016x}", id.max(1))
    }
}

/// FNV-1a hash with a seed. Unlike a keyed hash, it is stable between runs and releases.
fn hash_bytes(bytes: &[u8], seed: u64) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut hash = OFFSET_BASIS ^ mix_bits(seed);
    for &byte in bytes {
        hash = (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    }
    hash
}

/// Spreads each bit of a number over all bits of the result, as the last step of `SplitMix64` does.
fn mix_bits(mut n: u64) -> u64 {
    n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_its_own_trace_id_with_dashes_or_without() {
        let plain = TraceId::of_request("5b8efff798038103d269b633813fc60c", None, 1);
        let dashed = TraceId::of_request("5B8EFFF7-9803-8103-D269-B633813FC60C", None, 2);
        assert_eq!((plain.hex.as_str(), plain.from), ("5b8efff798038103d269b633813fc60c", "rid"));
        assert_eq!(dashed.hex, plain.hex);
    }

    #[test]
    fn any_other_rid_gets_a_stable_unique_id() {
        for rid in ["", "my-request", "00000000000000000000000000000000", "zz8efff798038103d269b633813fc60c"] {
            let (one, again, later) = [7, 7, 8].map(|wall_ns| TraceId::of_request(rid, None, wall_ns)).into();
            assert_eq!((one.from, one.hex.len()), ("hash", 32), "{rid}");
            assert_eq!(one.hex, again.hex);
            assert_ne!(one.hex, later.hex, "a reused rid is another request");
        }
    }

    #[test]
    fn requests_of_a_callers_trace_have_its_id_and_spans_of_their_own() {
        let parent = TraceParent { trace_id_high: 0xab, trace_id_low: 1, parent_id: 2, is_sampled: true };
        let [one, other] = ["5b8efff798038103d269b633813fc60c", "b"].map(|rid| {
            let trace = TraceId::of_request(rid, Some(parent), 7);
            assert_eq!((&*trace.hex, trace.from), ("00000000000000ab0000000000000001", "traceparent"));
            SpanIds::of_request(&trace, rid, 7).next_id()
        });
        assert_ne!(one, other);
    }

    #[test]
    fn span_ids_are_unique() {
        let mut ids = SpanIds::of_trace(&TraceId::of_capture("demo", 5), 5);
        let given: std::collections::BTreeSet<String> = (0..1_000).map(|_| ids.next_id()).collect();
        assert_eq!(given.len(), 1_000);
        assert!(given.iter().all(|id| id.len() == 16));
    }
}
