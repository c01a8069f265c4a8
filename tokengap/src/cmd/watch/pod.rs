//! One watched run: its connection, its analysis, and its missed records.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use outputs::report::{RunReport, hostile};
use recording::{BlockReader, Record, RecordOptions, RecordingHeader, StreamSection};
use replay::watch::{RemoteEvent, RemoteRun};
use serde_json::Value;
use session::units::{format_count, format_duration};
use session::{About, Flow, Session, Source};
use trace::clock::Anchor;
use trace::ledger::Limits;
use trace::{Analysis, ReportInput, words};
use tui::RunView;
use tui::pods::{KeyFigures, PodLine, PodState};

use super::Args;
use crate::app;
use crate::cmd::pair::{KnownSide, RunningServer};

/// Interval of connection checks and updates of the run list.
const UPDATE_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of sections per source and turn, so that other sources and keys get their turn.
const SECTIONS_A_TURN: usize = 8;
/// Time without a section until a source counts as silent. Sources send ten a second.
const SILENT_AFTER: Duration = Duration::from_secs(3);

/// A run observed by another process.
pub(super) struct Pod {
    remote: RemoteRun,
    /// Name of the source's machine, once it is known.
    host: Option<String>,
    name: String,
    kind: String,
    /// The latest statement of the source about its run.
    last_status: ReportInput,
    /// Both clocks of the source at the start of the run.
    anchor: Option<Anchor>,
    /// Problems of the connection, and missed records.
    problems: Vec<String>,
    reader: BlockReader,
    /// Id of the run; `None` before the first.
    run: Option<u64>,
    state: PodState,
    state_since: Instant,
    last_section: Instant,
    next_update: Instant,
    /// Reason for a missing connection.
    down_reason: String,
    /// The analysis failed, so the run is not followed any further.
    has_analysis_failed: bool,
    is_stopped: bool,
    gaps: u64,
    /// Blocks that could not be decoded, and the reason of the last.
    unreadable_blocks: u64,
    unreadable_reason: String,
    limits: Limits,
    record: Option<PathBuf>,
    options: RecordOptions,
    screen: Option<RunView>,
}

impl About for Pod {
    fn kind(&self) -> &str {
        &self.kind
    }

    fn degraded_lines(&self) -> Vec<String> {
        let from_source = self.last_status.degraded.iter().map(words::json_text);
        self.problems.iter().cloned().chain(from_source).chain(self.late_start_note()).collect()
    }

    fn observer_statement(&self) -> Option<&ReportInput> {
        Some(&self.last_status)
    }

    fn wall(&self) -> Option<Anchor> {
        self.last_status.wall.or(self.anchor)
    }
}

impl Source for Pod {
    /// Passes what has arrived from the remote run to the session, and at intervals updates the run's line in the list of runs. Returns
    /// whether anything has arrived, or the run has ended.
    fn poll(&mut self, session: &mut Session) -> Flow {
        if self.is_stopped {
            return Flow::Ended;
        }
        let mut flow = Flow::Idle;
        // Limited, because all watched runs are polled in turn on one thread.
        for _ in 0..SECTIONS_A_TURN {
            let Some(event) = self.remote.poll() else { break };
            self.process_remote_event(event, session);
            flow = Flow::Busy;
        }
        let now = Instant::now();
        if now >= self.next_update {
            self.next_update = now + UPDATE_INTERVAL;
            self.update_connection_problems(now);
            if let Some(RunView { screen, run_index }) = &self.screen {
                screen.borrow_mut().set_pod_line(*run_index, self.summary_line(now, session.analysis()));
            }
        }
        // Events that arrived with the end are processed first.
        let has_ended = flow == Flow::Idle && self.state == PodState::Ended;
        if has_ended { Flow::Ended } else { flow }
    }

    fn stop(&mut self) {
        self.is_stopped = true;
    }
}

impl Pod {
    /// A remote run before its connection. `has_own_recording`: it records to a file of its own, because several runs are watched.
    pub(super) fn new(remote: RemoteRun, screen: Option<RunView>, args: &Args, has_own_recording: bool) -> Self {
        let now = Instant::now();
        let record = args.record.clone();
        Self {
            name: hostile::escape_and_cut_line(&remote.endpoint()),
            host: None,
            kind: String::from("watch"),
            last_status: ReportInput::default(),
            anchor: None,
            problems: Vec::new(),
            reader: BlockReader::default(),
            run: None,
            state: PodState::default(),
            state_since: now,
            last_section: now,
            next_update: now,
            down_reason: String::new(),
            has_analysis_failed: false,
            is_stopped: false,
            gaps: 0,
            unreadable_blocks: 0,
            unreadable_reason: String::new(),
            limits: args.limits.limits(),
            record: if has_own_recording {
                record.map(|path| recording::path_of_run(&path, &remote.endpoint()))
            } else {
                record
            },
            options: RecordOptions {
                max_bytes: args.record_max_size,
                force: args.force,
                // No anchors are added: they would relate this machine's clocks, but the times are those of the source.
                anchor_every_ns: None,
                ..RecordOptions::default()
            },
            remote,
            screen,
        }
    }

    /// Uses the name of the source's machine, which says more than its address, and of its engine if it has several.
    fn update_name(&mut self) {
        let name = match (&self.host, self.remote.engine_name()) {
            (Some(host), Some(engine)) => format!("{host}/{engine}"),
            (Some(host), None) => host.clone(),
            (None, _) => self.remote.endpoint(),
        };
        self.name = hostile::escape_and_cut_line(&name);
    }

    /// Keeps the reason for a missing connection. If the run was connected, marks it as lost and notifies the user.
    fn record_connection_loss(&mut self, down_reason: String, session: &mut Session) {
        // After the end of a run, the connection is closed.
        if self.state == PodState::Ended {
            return;
        }
        self.down_reason = down_reason;
        // Only a connected run can be lost. For the others, each failed attempt to connect only changes the reason.
        let was_connected = matches!(self.state, PodState::Live | PodState::Silent);
        if was_connected {
            self.change_state(PodState::Lost);
            session.notify(format!("! {} was lost: {}", self.name, self.down_reason));
        }
    }

    /// Sets the state. Returns whether it was another one.
    fn change_state(&mut self, state: PodState) -> bool {
        if self.state == state {
            return false;
        }
        self.state = state;
        self.state_since = Instant::now();
        true
    }

    /// Processes what has happened to the connection, or has come over it.
    fn process_remote_event(&mut self, event: RemoteEvent, session: &mut Session) {
        match event {
            RemoteEvent::Up(host) => {
                // An empty name says no more than the address.
                self.host = host.filter(|host| !host.is_empty());
                self.update_name();
            }
            RemoteEvent::Down(why) => self.record_connection_loss(why, session),
            RemoteEvent::Section(section) => self.process_section(*section, session),
        }
    }

    /// Processes a section of the stream, which shows that the run is alive.
    fn process_section(&mut self, section: StreamSection, session: &mut Session) {
        self.last_section = Instant::now();
        match section {
            // The same run after a reconnection: known blocks are skipped.
            StreamSection::Header { run, .. } if self.run == Some(run) => {}
            StreamSection::Header { run, header } => self.start_run(run, &header, session),
            StreamSection::Block(block) => self.process_block(&block, session),
            StreamSection::Status(status) => self.last_status = *status,
            StreamSection::End(status) => {
                self.last_status = *status;
                let is_newly_ended = self.change_state(PodState::Ended);
                if is_newly_ended {
                    session.notify(format!("{} has ended", self.name));
                }
                // The run stays in this state.
                return;
            }
        }
        self.down_reason.clear();
        // A reconnection to a run that has ended gets its sections again.
        if self.state != PodState::Ended {
            self.change_state(PodState::Live);
        }
    }

    /// Starts the run that this header describes, with an empty analysis. If the source had another run before, ends that first.
    fn start_run(&mut self, run_id: u64, header: &RecordingHeader, session: &mut Session) {
        if self.run.is_some() {
            self.end_previous_run(session);
        }
        // Of each limit, the lower one holds: that of the source, or that of this command.
        let mut config = header.config;
        config.limits = config.limits.lower_of(self.limits);
        session.restart(config);
        self.forget_previous_run();
        self.state = PodState::Live;
        self.run = Some(run_id);
        self.kind = hostile::escape_and_cut_line(&header.source);
        self.anchor = Some(header.anchor);
        let header = RecordingHeader { source: self.kind.clone(), config, part: 0, ..header.clone() };
        session.sink().set_remote_header_and_options(header, self.options);
        if let Some(path) = self.record.take()
            && let Err(error) = session.sink().start_recording(&path)
        {
            session.add_degraded_line(format!("recording: {error}"));
            session.notify(format!("! recording: {error}"));
        }
    }

    /// Closes the files of the previous run, and tells the user that the source was restarted.
    fn end_previous_run(&mut self, session: &mut Session) {
        for message in session.close_files(&ReportInput::for_source(&self.kind)) {
            session.notify(message);
        }
        session.notify(format!("{} was restarted: this is the new run", self.name));
        // A recording holds one run, so the new one is not recorded.
        self.record = None;
    }

    /// Resets what was read, counted and stated so far, because it belongs to the previous run.
    fn forget_previous_run(&mut self) {
        self.reader = BlockReader::default();
        self.gaps = 0;
        self.unreadable_blocks = 0;
        self.unreadable_reason.clear();
        self.has_analysis_failed = false;
        self.last_status = ReportInput::default();
    }

    /// Passes the records of a block to the session, and reports records that are missing before it.
    fn process_block(&mut self, block: &[u8], session: &mut Session) {
        // The analysis has panicked at an earlier block.
        if self.has_analysis_failed {
            return;
        }
        // Taken out, because the session's tick borrows this run.
        let mut reader = mem::take(&mut self.reader);
        let lost_before = reader.lost();
        let mut process_record = |record: Record<'_>| match record {
            Record::Event(event) => session.process_event(&event),
            Record::Tick(now) => session.process_tick(now, self),
            // Neither changes the analysis.
            Record::Anchor(_) | Record::Closing(_) => {}
        };
        // An error in the analysis of one run must not end the others.
        let read = catch_unwind(AssertUnwindSafe(|| reader.read_block(block, &mut process_record)));
        self.reader = reader;
        match read {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                self.unreadable_blocks += 1;
                self.unreadable_reason = error.to_string();
            }
            // The analysis panicked, so later blocks of this run are skipped.
            Err(_) => {
                self.has_analysis_failed = true;
            }
        }
        self.note_missed_records(self.reader.lost() - lost_before, session);
    }

    /// Counts a gap of this many records in the stream and notifies the user. Does nothing if there are none.
    fn note_missed_records(&mut self, missed_records: u64, session: &mut Session) {
        if missed_records > 0 {
            self.gaps += 1;
            session.notify(format!("! {} records of {} were missed", format_count(missed_records), self.name));
        }
    }

    /// Marks a source that sends nothing as silent, and rebuilds the report's list of problems.
    fn update_connection_problems(&mut self, now: Instant) {
        self.update_name();
        // The source also sends sections without traffic, so silence means that it hangs or that the network holds them up.
        if self.state == PodState::Live && now - self.last_section >= SILENT_AFTER {
            self.change_state(PodState::Silent);
        }
        self.problems = self.problems_at(now);
    }

    /// Problems of the connection and of its contents.
    fn problems_at(&self, now: Instant) -> Vec<String> {
        let mut problems: Vec<String> = self.connection_problem(now).into_iter().collect();
        if self.reader.lost() > 0 {
            problems.push(format!(
                "watch: {} records of {} were missed, in {} gaps: lost between the run and this watcher, not in the engine",
                format_count(self.reader.lost()),
                self.name,
                self.gaps
            ));
        }
        if self.unreadable_blocks > 0 {
            problems.push(format!(
                "watch: {} blocks of {} could not be read, so its numbers are incomplete: {}; use the source's version of tokengap",
                format_count(self.unreadable_blocks),
                self.name,
                self.unreadable_reason
            ));
        }
        if self.has_analysis_failed {
            problems.push(format!(
                "watch: the events of {} could not be analysed, so it is no longer followed. Please report this bug.",
                self.name
            ));
        }
        problems
    }

    /// The problem of the connection to the source in its current state; `None` without one.
    fn connection_problem(&self, now: Instant) -> Option<String> {
        let state_age = format_duration((now - self.state_since).as_nanos() as u64);
        match self.state {
            PodState::Live | PodState::Ended | PodState::Waiting => None,
            // No attempt to connect has failed yet.
            PodState::Away if self.down_reason.is_empty() => None,
            PodState::Away => Some(format!("{} has been unreachable for {state_age}: {}", self.name, self.down_reason)),
            PodState::Silent => Some(format!("{} has been silent for {state_age}: its values are that old", self.name)),
            PodState::Lost => Some(format!("{} was lost {state_age} ago: {}", self.name, self.down_reason)),
        }
    }

    /// Note that the run began before the stream; `None` if the stream has the whole run or has not begun.
    fn late_start_note(&self) -> Option<String> {
        let earlier_records = self.reader.records_before()?;
        if earlier_records == 0 {
            return None;
        }
        Some(format!(
            "watch: the numbers of {} begin with the stream: {} earlier records are not in them; http://{}/report has the whole run",
            self.name,
            format_count(earlier_records),
            self.remote.address()
        ))
    }

    /// Wall-clock time at which the numbers begin, if the run began earlier. `None` otherwise, or if that time is not known.
    fn late_start_wall_ns(&self, analysis: &Analysis) -> Option<u64> {
        let has_earlier_records = self.reader.records_before().is_some_and(|records| records > 0);
        if !has_earlier_records {
            // The numbers begin with the run.
            return None;
        }
        let source_clocks = self.wall()?;
        Some(source_clocks.wall_ns_at(analysis.ledger().started()?))
    }

    /// Summary line of the run.
    fn summary_line(&self, now: Instant, analysis: &Analysis) -> PodLine {
        let engine = self.remote.engine().cloned().unwrap_or_default();
        PodLine {
            name: self.name.clone(),
            role: engine.role,
            port: engine.port,
            model: engine.model.unwrap_or_default(),
            state: self.state,
            state_age_ns: (now - self.state_since).as_nanos() as u64,
            reason: self.problems.first().cloned().unwrap_or_default(),
            records_missed: self.reader.lost(),
            begun_wall_ns: self.late_start_wall_ns(analysis),
            figures: KeyFigures::from_analysis(analysis),
        }
    }

    /// Drops the screen, which the last of its runs closes.
    pub(super) fn leave_screen(&mut self) {
        self.screen = None;
    }

    /// This run as a server of a pair; `None` before its clocks are known.
    pub(super) fn as_pair_server<'a>(&self, run_index: usize, analysis: &'a Analysis) -> Option<RunningServer<'a>> {
        // Relates the clock of the server's machine to the time of day.
        let anchor = self.anchor?;
        // The value of the server's flag --disaggregation-mode, as its source states it.
        let mode = self.last_status.wire.as_ref().and_then(|wire| wire.pointer("/disaggregation/mode"));
        Some(RunningServer {
            run_index,
            name: self.name.clone(),
            analysis,
            side: KnownSide::find(mode.and_then(Value::as_str), analysis),
            anchor: Some(anchor),
        })
    }

    /// Finishes the run and returns its report, which has the figures of the source's last status.
    pub(super) fn finish(mut self, session: Session) -> RunReport {
        self.update_connection_problems(Instant::now());
        let engine = self.remote.engine().cloned().unwrap_or_default();
        RunReport {
            endpoint: Some(self.remote.endpoint()),
            // Another role is no side of a pair.
            side: Some(engine.role).filter(|role| ["prefill", "decode"].contains(role)),
            port: engine.port,
            model: engine.model,
            state: self.state.label().to_lowercase(),
            records_before: self.reader.records_before(),
            records_missed: Some(self.reader.lost()),
            gaps: Some(self.gaps),
            report: session.finish(&self, &app::print_message),
            name: self.name,
        }
    }
}
