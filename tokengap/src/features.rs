//! Optional parts of the build.

/// Error for a flag whose cargo feature this build lacks.
pub(crate) fn missing(feature: &str) -> String {
    format!(
        "this tokengap was built without the cargo feature `{feature}`; install a package, or build with `cargo install --path tokengap \
         --features {feature}`"
    )
}
