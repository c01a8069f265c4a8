//! Version of the Python interpreter that a process runs.

use adapter::discover::{Origin, PythonVersion, Setting};

use crate::proc::maps::MappedFile;

/// Version of the interpreter of a process with these mapped files. `None` if no path contains it.
pub(crate) fn find_python_version(files: &[MappedFile]) -> Option<Setting<PythonVersion>> {
    files.iter().find_map(|file| {
        let version = PythonVersion::in_path(file.path.to_str()?)?;
        Some(Setting::new(version, Origin::Mapped(file.path.clone())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::maps;

    #[test]
    fn mapped_files_give_the_python_version() {
        let version = |path: &str| {
            let files = maps::parse_mapped_files(format!("7f00-7f01 r-xp 00000000 fe:00 1 {path}\n").as_bytes());
            assert_eq!(files.len(), 1);
            find_python_version(&files).map(|setting| setting.value.to_string())
        };
        assert_eq!(version("/usr/bin/python3.12").as_deref(), Some("3.12"));
        assert_eq!(version("/usr/lib/x86_64-linux-gnu/libpython3.10.so.1.0").as_deref(), Some("3.10"));
        assert_eq!(version("/opt/v/lib/python3.11/site-packages/zmq/_zmq.so").as_deref(), Some("3.11"));
        assert_eq!(version("/usr/lib/python3/dist-packages/apt_pkg.so"), None);
        assert_eq!(version("/home/python/lib/libc.so.6"), None);
    }
}
