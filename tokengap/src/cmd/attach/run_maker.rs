//! Makes the run of each engine, with its outputs and its place on the screen.

use std::cell::RefCell;
use std::rc::Rc;

use recording::RecordedPayload;
use session::sink::OutputFiles;
use session::telemetry::{MetricsOptions, SharedTelemetry};
use session::{About as _, LiveSource as _, Observer, Running};
use sources::attach::EngineRun;
use tui::{RunView, Screen};

use super::watched_engine::WatchedEngine;
use crate::app::{self, RunOutputs};
use crate::args::LiveArgs;
use crate::headless::Progress;

/// Makes runs, which share a screen and an endpoint.
pub(super) struct RunMaker<'a> {
    live: &'a LiveArgs,
    /// The files of the user's options, from which each of several runs derives its own.
    files: OutputFiles,
    telemetry: SharedTelemetry,
    /// `None` without a screen.
    screen: Option<Rc<RefCell<Screen>>>,
    run_count: usize,
}

impl<'a> RunMaker<'a> {
    pub(super) fn new(live: &'a LiveArgs) -> Self {
        let files = live.record.recording_files();
        Self { live, files, telemetry: SharedTelemetry::default(), screen: None, run_count: 0 }
    }

    /// Starts the runs of the engines that are there at the start. An output that cannot be opened is an error, before the screen opens.
    pub(super) fn start_first_runs(
        &mut self,
        engines: Vec<EngineRun>,
        endpoint: Option<MetricsOptions>,
    ) -> anyhow::Result<Vec<Running<WatchedEngine>>> {
        let are_several = engines.len() > 1;
        let outputs = self.open_outputs(&engines, endpoint)?;
        self.screen = app::open_screen_unless_headless(self.live)?.map(|screen| Rc::new(RefCell::new(screen)));
        // A single engine needs no list.
        if are_several && let Some(screen) = &self.screen {
            screen.borrow_mut().watch_runs(engines.len());
            screen.borrow_mut().open_run_list();
        }
        let mut runs = Vec::new();
        for (engine, outputs) in engines.into_iter().zip(outputs) {
            runs.push(self.create_run(engine, outputs));
        }
        Ok(runs)
    }

    /// Opens the outputs of each engine's run. The first run opens the endpoint, and the others share it.
    fn open_outputs(
        &mut self,
        engines: &[EngineRun],
        mut endpoint: Option<MetricsOptions>,
    ) -> anyhow::Result<Vec<RunOutputs>> {
        let are_several = engines.len() > 1;
        let mut outputs = Vec::new();
        for engine in engines {
            let files = if are_several { self.files.of_run(&engine.name()) } else { self.files.clone() };
            if outputs.is_empty() {
                let first = RunOutputs::open(self.live, engine.kind(), &files, endpoint.take())?;
                self.telemetry = first.shared_telemetry();
                outputs.push(first);
            } else {
                outputs.push(RunOutputs::open_for_further_run(self.live, engine.kind(), &files, &self.telemetry)?);
            }
        }
        Ok(outputs)
    }

    /// Starts the run of an engine that joins the others. If its files cannot be opened, it goes on without them.
    pub(super) fn start_further_run(&mut self, engine: EngineRun) -> Running<WatchedEngine> {
        let name = engine.name();
        let opened =
            RunOutputs::open_for_further_run(self.live, engine.kind(), &self.files.of_run(&name), &self.telemetry);
        // The other runs go on, so a failure here must not end the command.
        let mut problem = None;
        let outputs = match opened {
            Ok(outputs) => outputs,
            Err(error) => {
                problem = Some(format!("recording: {error:#}"));
                RunOutputs::further_run_without_files(self.live, engine.kind(), self.files.payload, &self.telemetry)
            }
        };
        if let Some(screen) = &self.screen {
            screen.borrow_mut().add_run();
        }
        let mut run = self.create_run(engine, outputs);
        if let Some(problem) = problem {
            run.session.add_degraded_line(problem);
        }
        run.session.notify(format!("{name} has started"));
        run
    }

    /// Connects an engine with its outputs and with its place on the screen.
    fn create_run(&mut self, mut engine: EngineRun, outputs: RunOutputs) -> Running<WatchedEngine> {
        if self.files.payload == RecordedPayload::Tokens {
            engine.keep_ids();
        }
        let run_index = self.run_count;
        self.run_count += 1;
        let observer: Box<dyn Observer> = match self.view(run_index) {
            Some(view) => Box::new(view),
            None => Box::new(Progress::default()),
        };
        let session = outputs.into_session(self.live, observer);
        Running::new(WatchedEngine::new(engine, self.view(run_index)), session)
    }

    /// The screen of all runs; `None` if there is none.
    pub(super) fn screen(&self) -> Option<Rc<RefCell<Screen>>> {
        self.screen.clone()
    }

    /// Place of a run on the screen; `None` without a screen.
    fn view(&self, run_index: usize) -> Option<RunView> {
        self.screen.clone().map(|screen| RunView { screen, run_index })
    }
}
