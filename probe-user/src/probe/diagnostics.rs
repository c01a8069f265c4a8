//! Log messages of the kernel side (`aya-log`), forwarded to `tracing`.

pub(super) struct ToTracing;

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
