//! Log messages of the kernel side (`aya-log`), forwarded to `tracing`.

use aya::Ebpf;
use aya_log::EbpfLogger;

/// Reader of the kernel side's log messages.
pub(crate) struct Diagnostics(EbpfLogger<ToTracing>);

impl Diagnostics {
    /// Returns `None` if the object has no log.
    pub(crate) fn of(ebpf: &mut Ebpf) -> Option<Self> {
        EbpfLogger::init_with_logger(ebpf, ToTracing).ok().map(Self)
    }

    pub(crate) fn flush(&mut self) {
        self.0.flush();
    }
}

struct ToTracing;

impl log::Log for ToTracing {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        match record.level() {
            log::Level::Error | log::Level::Warn => tracing::warn!(target: "probe", "{}", record.args()),
            _ => tracing::debug!(target: "probe", "{}", record.args()),
        }
    }

    fn flush(&self) {}
}
