//! Rare records: fields in sequence after their length and their number of new texts. New fields are only added at the end of a record; a
//! reader skips fields it does not know.

use super::bytes::{Cursor, Malformed, Put};
use super::codes::{Code, op};
use super::columns::Columns;
use super::text::{Reading, Texts};
use crate::clock::MonoNs;
use crate::event::{
    Answer, ArgumentsPart, Away, Capabilities, CpuSample, Engine, FrontendWait, Hop, LoggedState, Merged, Missed,
    PollUse, QueueSample, SendWait, StackSample, Stage, ToolCallOutcome, ToolCalls, Undecoded, UnjudgedReason, What,
};
use crate::id::{FrameId, HopId, ThreadId};

/// A field of a record.
trait Field<'b>: Sized {
    fn write(&self, to: &mut Writing<'_>);
    fn read(from: &mut RareReader<'b>) -> Result<Self, Malformed>;
}

/// The fields of each kind of record, in the order in which they are written.
macro_rules! records {
    ($($op:ident $variant:ident $type:ident { $($field:ident),+ $(,)? })+) => {
        impl Writing<'_> {
            /// Writes the fields of a rare record and returns its kind; `None` for a columnar one.
            pub(super) fn what(&mut self, what: &What<'_>) -> Option<u8> {
                Some(match what {
                    $(What::$variant(record) => {
                        $(record.$field.write(self);)+
                        op::$op
                    })+
                    What::Engine(engine) => {
                        engine.write(self);
                        op::ENGINE
                    }
                    What::Hop(hop) => {
                        hop.write(self);
                        op::HOP
                    }
                    What::Sent(_) | What::Received(_) | What::Processed(_) | What::Delivered(_) => {
                        return None;
                    }
                })
            }
        }

        impl<'b> RareReader<'b> {
            /// Reads a record of that kind; `None` if the kind is unknown.
            pub(super) fn what(&mut self, kind: u8) -> Result<Option<What<'b>>, Malformed> {
                Ok(Some(match kind {
                    $(op::$op => What::$variant($type { $($field: Field::read(self)?),+ }),)+
                    op::ENGINE => What::Engine(Field::read(self)?),
                    op::HOP => What::Hop(Field::read(self)?),
                    _ => return Ok(None),
                }))
            }
        }
    };
}

records! {
    UNDECODED Undecoded Undecoded { id, bytes, reason, forwarded }
    SEND_WAIT SendWait SendWait { hop, ns }
    CPU Cpu CpuSample { thread, role, name, part, interval_ns, on_ns, wait_ns, throttled_ns, poll, away }
    QUEUE Queue QueueSample { hop, receive_bytes, send_bytes }
    HOT Stack StackSample { thread, role, function, file, interval_ns, samples, total, own, gil }
    STAGE Stage Stage { rid, name, by, tokens, pending }
    LOGGED_STATE LoggedState LoggedState { by, states, rids, recv_wait_ns, more, cpu, cpu_system }
    MERGED Merged Merged { rid, chunks, by }
    ANSWERED Answered Answer { rid, tokens, completion_tokens, end, short_writes, unacknowledged, tool_calls }
    FRONTEND_WAIT FrontendWait FrontendWait { rid, first_token_ns, last_token_ns }
    LOST Missed Missed { hop, count, cause }
}

/// A record being written.
pub(super) struct Writing<'a> {
    texts: &'a mut Texts,
    columns: &'a mut Columns<Vec<u8>>,
    fields: &'a mut Vec<u8>,
    new: u64,
}

impl<'a> Writing<'a> {
    pub(super) fn new(texts: &'a mut Texts, columns: &'a mut Columns<Vec<u8>>, fields: &'a mut Vec<u8>) -> Self {
        fields.clear();
        Self { texts, columns, fields, new: 0 }
    }

    /// Appends the record to `rare`, or to `standing`.
    pub(super) fn end(self, standing: bool) {
        let column = if standing { &mut self.columns.standing } else { &mut self.columns.rare };
        column.number(self.fields.len() as u64);
        column.number(self.new);
        column.extend_from_slice(self.fields);
    }

    pub(super) fn number(&mut self, value: u64) {
        self.fields.number(value);
    }
}

/// A record being read.
pub(super) struct RareReader<'b> {
    fields: Cursor<'b>,
    texts: Reading<'b>,
}

impl<'b> RareReader<'b> {
    /// Reads the next record of a column. Always skips its new texts in `texts`.
    pub(super) fn next(column: &mut Cursor<'b>, texts: &mut Reading<'b>) -> Result<Self, Malformed> {
        let length = column.number()?;
        let new = column.small()?;
        let fields = Cursor::new(column.bytes(length as usize)?);
        texts.pass(new);
        Ok(Self { fields, texts: *texts })
    }

    /// Reads the wall-clock time of an anchor.
    pub(super) fn wall_ns(&mut self) -> Result<u64, Malformed> {
        self.fields.number()
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        Ok(self.fields.byte()? != 0)
    }

    fn maybe_code<T: Code>(&mut self) -> Result<Option<T>, Malformed> {
        Option::<u8>::read(self)?.map(T::of).transpose()
    }

    /// Reads a record of `standing`, which starts with its kind.
    pub(super) fn standing(&mut self) -> Result<Option<What<'b>>, Malformed> {
        let kind = self.fields.byte()?;
        self.what(kind)
    }
}

/// Numbers, and numbers that may be unknown.
macro_rules! numbers {
    ($($type:ty)+) => {$(
        impl Field<'_> for $type {
            fn write(&self, to: &mut Writing<'_>) {
                to.number((*self).into());
            }

            fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
                sized(from.fields.number()?)
            }
        }

        impl Field<'_> for Option<$type> {
            fn write(&self, to: &mut Writing<'_>) {
                to.fields.maybe(self.map(Into::into));
            }

            fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
                from.fields.maybe()?.map(sized).transpose()
            }
        }
    )+};
}

numbers! { u8 u16 u32 u64 }

fn sized<T: TryFrom<u64>>(number: u64) -> Result<T, Malformed> {
    T::try_from(number).map_err(|_| Malformed("a number is too large for its field"))
}

/// Structs, field by field.
macro_rules! structs {
    ($($type:ident { $($field:tt),+ })+) => {$(
        impl Field<'_> for $type {
            fn write(&self, to: &mut Writing<'_>) {
                $(self.$field.write(to);)+
            }

            fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
                Ok(Self { $($field: Field::read(from)?),+ })
            }
        }
    )+};
}

structs! {
    HopId { 0 }
    FrameId { hop, lane, seq }
    ThreadId { pid, tid }
    PollUse { interval_ns, polled_ns, wakeups }
}

impl<'b> Field<'b> for &'b str {
    fn write(&self, to: &mut Writing<'_>) {
        let (place, new) = to.texts.place(self, to.columns);
        to.new += u64::from(new);
        place.write(to);
    }

    fn read(from: &mut RareReader<'b>) -> Result<Self, Malformed> {
        let place = Field::read(from)?;
        from.texts.get(place)
    }
}

impl<T: Code + Copy> Field<'_> for T {
    fn write(&self, to: &mut Writing<'_>) {
        to.fields.push(self.code());
    }

    fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
        T::of(from.fields.byte()?)
    }
}

impl Field<'_> for Option<HopId> {
    fn write(&self, to: &mut Writing<'_>) {
        self.map(|hop| hop.0).write(to);
    }

    fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
        Ok(Option::<u16>::read(from)?.map(HopId))
    }
}

impl Field<'_> for Option<bool> {
    fn write(&self, to: &mut Writing<'_>) {
        self.map(u8::from).write(to);
    }

    fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
        Ok(Option::<u8>::read(from)?.map(|flag| flag != 0))
    }
}

impl Field<'_> for Option<PollUse> {
    fn write(&self, to: &mut Writing<'_>) {
        to.fields.push(u8::from(self.is_some()));
        if let Some(poll) = self {
            poll.write(to);
        }
    }

    fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
        from.flag()?.then(|| Field::read(from)).transpose()
    }
}

impl Field<'_> for Option<f64> {
    fn write(&self, to: &mut Writing<'_>) {
        to.fields.push(u8::from(self.is_some()));
        if let Some(share) = self {
            to.fields.extend_from_slice(&share.to_bits().to_le_bytes());
        }
    }

    fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
        if !from.flag()? {
            return Ok(None);
        }
        let bytes = from.fields.bytes(8)?.try_into();
        let bytes = bytes.map_err(|_| Malformed("a share is cut short"))?;
        Ok(Some(f64::from_bits(u64::from_le_bytes(bytes))))
    }
}

/// The last field of its record, omitted if unknown.
impl Field<'_> for Option<ToolCalls> {
    fn write(&self, to: &mut Writing<'_>) {
        let Some(calls) = self else { return };
        calls.calls.write(to);
        calls.call.write(to);
        calls.outcome.write(to);
        to.fields.maybe(calls.finish.map(|finish| finish.code().into()));
        calls.part.map(|part| part.at).write(to);
        if let Some(part) = calls.part {
            part.chars.write(to);
            part.tokens[0].write(to);
            part.tokens[1].write(to);
            u8::from(part.whole_chunks).write(to);
        }
        // From 2.7 on.
        calls.absent.write(to);
        calls.events.write(to);
        if let Some(part) = calls.part {
            part.events[0].write(to);
            part.events[1].write(to);
            u8::from(part.whole_events).write(to);
        }
        // From 2.8 on.
        to.fields.maybe(calls.reason.map(|reason| reason.code().into()));
    }

    fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
        if from.fields.is_empty() {
            return Ok(None);
        }
        let mut calls = ToolCalls {
            calls: Field::read(from)?,
            absent: 0,
            call: Field::read(from)?,
            outcome: Field::read(from)?,
            reason: None,
            finish: from.maybe_code()?,
            events: 0,
            part: match Field::read(from)? {
                None => None,
                Some(at) => Some(ArgumentsPart {
                    at,
                    chars: Field::read(from)?,
                    tokens: [Field::read(from)?, Field::read(from)?],
                    whole_chunks: from.flag()?,
                    events: [0, 0],
                    whole_events: false,
                }),
            },
        };
        if !from.fields.is_empty() {
            (calls.absent, calls.events) = (Field::read(from)?, Field::read(from)?);
            if let Some(part) = &mut calls.part {
                part.events = [Field::read(from)?, Field::read(from)?];
                part.whole_events = from.flag()?;
            }
        }
        calls.reason = if from.fields.is_empty() {
            (calls.outcome == ToolCallOutcome::Unjudged).then_some(UnjudgedReason::Differs)
        } else {
            from.maybe_code()?
        };
        Ok(Some(calls))
    }
}

/// The last field of its record, omitted if unknown.
impl Field<'_> for Option<MonoNs> {
    fn write(&self, to: &mut Writing<'_>) {
        if let Some(at) = self {
            at.0.write(to);
        }
    }

    fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
        let known = !from.fields.is_empty();
        known.then(|| Field::read(from).map(MonoNs)).transpose()
    }
}

/// The last field of its record, omitted if unknown.
impl<'b> Field<'b> for Option<Away<'b>> {
    fn write(&self, to: &mut Writing<'_>) {
        if let Some(away) = self {
            away.state.write(to);
            away.place.write(to);
        }
    }

    fn read(from: &mut RareReader<'b>) -> Result<Self, Malformed> {
        if from.fields.is_empty() {
            return Ok(None);
        }
        let (state, place) = (Field::read(from)?, Field::read(from)?);
        Ok(Some(Away { state, place }))
    }
}

impl<'b> Field<'b> for Engine<'b> {
    fn write(&self, to: &mut Writing<'_>) {
        to.fields.push(u8::from(self.version.is_some()));
        self.version.unwrap_or("").write(to);
        self.mode.map(Code::code).write(to);
        self.waiter.map(Code::code).write(to);
        self.turnaround.write(to);
        // Omitted if unknown.
        if let Some(name) = self.name {
            name.write(to);
        }
    }

    fn read(from: &mut RareReader<'b>) -> Result<Self, Malformed> {
        let known = from.flag()?;
        let version = Field::read(from)?;
        Ok(Self {
            version: Some(version).filter(|_| known),
            mode: from.maybe_code()?,
            waiter: from.maybe_code()?,
            turnaround: Field::read(from)?,
            name: (!from.fields.is_empty()).then(|| Field::read(from)).transpose()?,
        })
    }
}

impl<'b> Field<'b> for Hop<'b> {
    fn write(&self, to: &mut Writing<'_>) {
        self.id.write(to);
        self.ends.to_string().as_str().write(to);
        self.endpoint.write(to);
        self.worker.write(to);
        let flags = [
            self.origin,
            self.last,
            self.capabilities.sent,
            // Whether forwards have records of their own: files before 2.6.
            false,
            self.capabilities.received,
            self.capabilities.processed,
            self.capabilities.delivered,
            self.capabilities.forwarded,
        ];
        to.number(flags.iter().rev().fold(0, |all, &flag| all << 1 | u64::from(flag)));
    }

    fn read(from: &mut RareReader<'b>) -> Result<Self, Malformed> {
        let (id, name, endpoint) = (Field::read(from)?, <&str>::read(from)?, Field::read(from)?);
        let worker = Field::read(from)?;
        let flags = from.fields.number()?;
        let flag = |place: u32| flags >> place & 1 != 0;
        Ok(Self {
            id,
            ends: name.into(),
            endpoint,
            worker,
            origin: flag(0),
            last: flag(1),
            capabilities: Capabilities {
                sent: flag(2),
                forwarded: flag(7),
                received: flag(4),
                processed: flag(5),
                delivered: flag(6),
            },
        })
    }
}
