//! Facts about an engine that the analysis needs, and the registry of known engines.

use std::fmt;

use super::{Mode, Waiter};

/// Facts about one engine. The defaults describe an unknown engine.
pub trait Facts: fmt::Debug + Sync {
    /// Name in reports, metrics and exports, in lower case.
    fn name(&self) -> &'static str {
        "unknown"
    }

    /// Name in sentences.
    fn title(&self) -> &'static str {
        "the engine"
    }

    /// Behaviour of a release or of a range such as `0.5.12..0.5.14`; empty where it is unknown or the releases differ.
    fn behaviour(&self, _version: &str) -> Behaviour {
        Behaviour::default()
    }

    /// Event-loop iterations from one receive to the next while messages are queued. The default is that of pyzmq on asyncio, measured:
    /// docs/internals/WIRE.md.
    fn turns_per_message(&self) -> u64 {
        2
    }

    /// Prefix of the ids of the server's own health checks; empty if it has none.
    fn health_check_prefix(&self) -> &'static str {
        ""
    }

    /// Names of the stages in its logs.
    fn stages(&self) -> &'static StageNames {
        &StageNames::NONE
    }

    /// Stages that one process passes in this order, while others of the same request may overlap. The time between two of them counts from
    /// the one before it in the same list. No stage is in two lists.
    fn stage_chains(&self) -> &'static [&'static [&'static str]] {
        &[]
    }

    /// Role whose silence the engine's own health check reports.
    fn checked_sender(&self) -> &'static str {
        "sender"
    }

    /// How to relieve a busy process of this role, of which several may run, or any process for an empty role; empty if unknown.
    fn advice_for_busy_role(&self, _role: &str, _runs_several: bool) -> &'static str {
        ""
    }

    /// How to shorten the queue of the process that generates tokens.
    fn queue_relief(&self) -> &'static str {
        "add replicas, or send fewer requests at once"
    }

    /// Cause and cure of requests that this process receives late, unless its thread could not run.
    fn late_receive(&self) -> &'static str {
        "it does other work or does not run; `py-spy dump` shows its stack"
    }

    /// Cause and cure of requests that it has received and that enter its queue late.
    fn late_intake(&self) -> &'static str {
        self.late_receive()
    }

    /// Name, in sentences, of the process that generates tokens.
    fn source(&self) -> &'static str {
        "sender"
    }

    /// Name, in sentences, of the process that receives tokens and responds to clients.
    fn receiver(&self) -> &'static str {
        "receiver"
    }

    /// Number of tokens between outputs of a request that is not streamed; `None` if its output is sent as it is generated.
    fn unstreamed_tokens(&self) -> Option<u32> {
        None
    }

    /// Advice for responses of its `OpenAI` endpoints that list fewer token ids than they count; empty if these list none.
    fn unlisted_ids(&self) -> &'static str {
        ""
    }

    /// Whether the engine sends no finish reason for a request whose client disconnected or whose stop string matched. The end of the
    /// response then ends the request.
    fn ends_silently(&self) -> bool {
        false
    }

    /// Whether an abort also ends the requests whose ids begin with its id. Assumed of an unknown engine, so that none of them is said to
    /// wait.
    fn aborts_by_prefix(&self) -> bool {
        true
    }

    /// Time after which it aborts the rid of each streamed response that ended, whoever has the rid by then; `None` if it does not.
    fn abort_delay_ns(&self) -> Option<u64> {
        None
    }

    /// Whether received frames wait in a queue of the receiver, so that a receive does not end a token's wait.
    fn queues_after_receive(&self) -> bool {
        false
    }

    /// Reason why tokens wait in the process that generated them.
    fn late_send(&self) -> &'static str {
        "the thread that encodes and sends the messages is stopped, or is waiting for a CPU or the GIL"
    }

    /// Where tokens may wait that are sent but not yet written to a client, if their receive is not observed.
    fn late_inside(&self) -> &'static str {
        "when the receiver received them is not observed: look for its queue, its threads' use of the CPU, and a busy machine"
    }

    /// Beginnings of the names of threads that take messages inside the process that generated them.
    fn server_threads(&self) -> &'static [&'static str] {
        &[]
    }

    /// Advice for uneven load: the assignment of requests to receivers, and how to balance it.
    fn balance(&self) -> &'static str {
        "each request is assigned to a receiver before its tokens are queued: check the component that assigns requests"
    }

    /// Releases that drop queued chunks in incremental mode, if any does.
    fn drops(&self) -> Option<Drops> {
        None
    }

    /// Cause and cure of requests that the scheduler continues without a client, in this release; `None` if the release is unknown. Empty
    /// if no cause in the engine is known.
    fn advice_on_abandoned_requests(&self, _version: Option<&str>) -> &'static str {
        ""
    }

    /// Times of a request that this release sends with the first tokens.
    fn sent_times(&self, _version: Option<&str>) -> SentTimes {
        SentTimes::both(SentTime::OnlyIf("the engine is unknown"))
    }

    /// Releases that leave out text of responses in incremental mode, if all of `version` do.
    fn text_loss_of_release(&self, _version: &str) -> Option<Drops> {
        None
    }
}

/// How the output mode is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputModeRule {
    /// Always this mode.
    Always(Mode),
    /// Incremental with this server flag, cumulative without.
    ByFlag(&'static str),
}

/// Behaviour of a release, or common to all releases of a range. `None` if the range disagrees or it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// How a waiter processes several queued chunks.
    pub waiter: Option<Waiter>,
    /// Output mode where token frames reach the tokenizer.
    pub token_path: Option<OutputModeRule>,
    /// Output mode where text frames reach the tokenizer.
    pub text_path: Option<OutputModeRule>,
}

impl Behaviour {
    /// The output mode, if it is fixed and the same on the token path and the text path; `None` if a flag selects it, or it is unknown.
    pub fn fixed_output_mode(&self) -> Option<Mode> {
        let Some(OutputModeRule::Always(on_token_path)) = self.token_path else { return None };
        let Some(OutputModeRule::Always(on_text_path)) = self.text_path else { return None };
        (on_token_path == on_text_path).then_some(on_token_path)
    }

    /// Flag that selects incremental output on the token path or, without one, on the text path; `None` if the release has none.
    pub fn incremental_output_flag(&self) -> Option<&'static str> {
        [self.token_path, self.text_path].into_iter().flatten().find_map(|rule| match rule {
            OutputModeRule::ByFlag(flag) => Some(flag),
            OutputModeRule::Always(_) => None,
        })
    }
}

/// Releases that lose tokens in incremental mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drops {
    /// First release that loses none.
    pub fixed_in: &'static str,
    /// Flag that selects incremental mode before that.
    pub flag: &'static str,
}

/// Whether messages have a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentTime {
    /// Always.
    Always,
    /// Only under a condition. The text is the reason why they have none.
    OnlyIf(&'static str),
    /// Never. The text is the reason.
    Never(&'static str),
}

/// Times of a request that an engine sends ([`crate::event::EngineTimes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentTimes {
    /// Entry to the queue and first entry to a batch.
    pub entries: SentTime,
    /// End of the prefill.
    pub prefill_end: SentTime,
}

impl SentTimes {
    /// Times of an engine that sends both kinds alike.
    pub const fn both(time: SentTime) -> Self {
        Self { entries: time, prefill_end: time }
    }
}

/// Reasons for absent times of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbsentEngineTimes {
    /// Why the entry to the queue and to a batch is unknown.
    pub entries: &'static str,
    /// Why the end of the prefill is unknown.
    pub prefill_end: &'static str,
}

/// Names of the stages in an engine's logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageNames {
    /// Stage at which the scheduler hands a request's first output to its socket.
    pub first_sent: &'static str,
    /// Stage at which the receiver processes a request's first output.
    pub first_received: &'static str,
    /// Stage at which a request's first output is accepted for its client.
    pub first_delivered: &'static str,
    /// Stage at which the receiver throws an output away, because it has deleted the request.
    pub discarded: &'static str,
    /// Stages that end a request.
    pub ends: &'static [&'static str],
    /// Known stages, in the order in which a request passes them.
    pub order: &'static [&'static str],
}

impl StageNames {
    /// No known stage.
    pub const NONE: Self =
        Self { first_sent: "", first_received: "", first_delivered: "", discarded: "", ends: &[], order: &[] };

    /// Position of a stage in the order that requests pass them; `None` for unknown stages.
    pub fn index_of(&self, stage: &str) -> Option<usize> {
        self.order.iter().position(|&known| known == stage)
    }
}

/// An engine without known facts.
#[derive(Debug)]
struct Unknown;

impl Facts for Unknown {}

impl PartialEq for dyn Facts {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Default for &'static dyn Facts {
    fn default() -> Self {
        &Unknown
    }
}

/// The known engines. Until a source names the engine, the first one is assumed: logs name none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Engines(pub &'static [&'static dyn Facts]);

impl Engines {
    /// Facts about the engine of this name. Without a name, those about the first known engine; for an unknown name, the defaults.
    pub fn facts(self, engine_name: Option<&str>) -> &'static dyn Facts {
        let known = match engine_name {
            Some(engine_name) => self.0.iter().find(|engine| engine.name() == engine_name),
            None => self.0.first(),
        };
        known.copied().unwrap_or_default()
    }

    /// The known engine whose `OpenAI` endpoints list token ids, if only one does.
    pub(crate) fn only_engine_listing_ids(self) -> Option<&'static dyn Facts> {
        // Only such an engine has advice about ids that its responses do not list.
        let mut listing = self.0.iter().filter(|engine| !engine.unlisted_ids().is_empty());
        let only = listing.next()?;
        listing.next().is_none().then_some(*only)
    }
}
