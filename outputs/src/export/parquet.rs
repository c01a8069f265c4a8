//! Parquet with the columns of CSV, typed, and the recording of each row. A null means "not observed". Times of day are microseconds,
//! which every reader supports.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;

use super::request_row::{Cell, ColumnKind, cells_of_request, request_columns};
use super::{ExportContext, ExportedRequest, Exporter, Opening, Options};
use crate::report::Report;

/// Columns that are equal in all rows of a file.
const RECORDING: [(&str, ColumnKind); 2] = [("recording", ColumnKind::Text), ("capture_start", ColumnKind::Moment)];
/// Rows held in memory until they are written as a row group: some 20 MB.
const ROWS_PER_GROUP: usize = 32_768;

pub(super) struct Parquet<'w> {
    out: Box<dyn Write + 'w>,
    // The writer must be `Send`, and `out` need not be.
    file: SerializedFileWriter<Vec<u8>>,
    columns: Vec<ParquetColumn>,
    /// Number of rows in the columns that are not written yet.
    held_rows: usize,
    /// Name of the recording, which each row contains.
    recording: Option<String>,
    /// Start of the capture, which each row contains.
    start_wall_ns: u64,
}

impl<'w> Parquet<'w> {
    /// Starts a file. It is encoded in memory and written to `out` one row group at a time.
    pub(super) fn new(out: Box<dyn Write + 'w>, opening: &Opening, options: &Options) -> io::Result<Self> {
        // The columns about the recording come first.
        let columns: Vec<_> = RECORDING.into_iter().chain(request_columns()).collect();
        let clock = opening.clock();
        Ok(Self {
            out,
            file: open_writer(&columns, opening).map_err(io_error_of)?,
            columns: columns.iter().map(|(_, kind)| ParquetColumn::new(*kind)).collect(),
            held_rows: 0,
            recording: options.recording.clone(),
            start_wall_ns: clock.wall_ns(clock.start),
        })
    }

    /// Writes the held rows as a row group, which empties the columns.
    fn write_row_group(&mut self) -> io::Result<()> {
        self.held_rows = 0;
        write_columns(&mut self.file, &mut self.columns).map_err(io_error_of)?;
        self.write_encoded_bytes()
    }

    /// Passes the finished bytes of the encoder to the output.
    fn write_encoded_bytes(&mut self) -> io::Result<()> {
        self.file.flush()?;
        let written = self.file.inner_mut();
        self.out.write_all(written)?;
        written.clear();
        Ok(())
    }
}

impl Exporter for Parquet<'_> {
    /// Adds the row of a request to the held ones. Writes them if they are enough for a row group.
    fn write_request(&mut self, request: &ExportedRequest<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        // In the order of `RECORDING`: two cells that all rows of the recording have in common.
        let recording = self.recording.as_deref().map(|name| Cell::Text(name.into()));
        let common_cells = [recording, Some(Cell::Moment(self.start_wall_ns))].into_iter();
        for (column, cell) in self.columns.iter_mut().zip(common_cells.chain(cells_of_request(request, context))) {
            column.push(cell);
        }
        self.held_rows += 1;
        if self.held_rows == ROWS_PER_GROUP { self.write_row_group() } else { Ok(()) }
    }

    /// Writes the held rows and the end of the file.
    fn write_end(&mut self, _: &Report, _: &ExportContext<'_>) -> io::Result<()> {
        if self.held_rows > 0 {
            self.write_row_group()?;
        }
        self.file.finish().map_err(io_error_of)?;
        self.write_encoded_bytes()?;
        self.out.flush()
    }
}

/// Values of a column in the row group to be written next.
struct ParquetColumn {
    values: Values,
    /// 1 for a value, 0 for a null.
    levels: Vec<i16>,
}

enum Values {
    Text(Vec<ByteArray>),
    Number(Vec<i64>),
    Flag(Vec<bool>),
}

impl ParquetColumn {
    /// Creates an empty column of this kind.
    fn new(kind: ColumnKind) -> Self {
        let values = match kind {
            ColumnKind::Text => Values::Text(Vec::new()),
            ColumnKind::Number | ColumnKind::Moment => Values::Number(Vec::new()),
            ColumnKind::Flag => Values::Flag(Vec::new()),
        };
        Self { values, levels: Vec::new() }
    }

    /// Appends the value of a row, or a null for `None`. A number too large for the format becomes its largest one.
    fn push(&mut self, cell: Option<Cell<'_>>) {
        // The level says whether the row has a value; missing values are not stored.
        self.levels.push(i16::from(cell.is_some()));
        let Some(cell) = cell else { return };
        match (&mut self.values, cell) {
            (Values::Text(values), Cell::Text(text)) => values.push(ByteArray::from(&*text)),
            (Values::Number(values), Cell::Number(value)) => values.push(saturate_to_i64(value)),
            // The column's unit is microseconds.
            (Values::Number(values), Cell::Moment(wall_ns)) => values.push(saturate_to_i64(wall_ns / 1_000)),
            (Values::Flag(values), Cell::Flag(flag)) => values.push(flag),
            _ => debug_assert!(false, "a value of another type than its column"),
        }
    }

    /// Writes the column's values in this row group, and empties the column.
    fn write(&mut self, writer: &mut SerializedColumnWriter<'_>) -> Result<()> {
        // The levels say for each row whether it has a value.
        let levels = Some(&*self.levels);
        match &mut self.values {
            Values::Text(values) => write_values::<ByteArrayType>(writer, values, levels)?,
            Values::Number(values) => write_values::<Int64Type>(writer, values, levels)?,
            Values::Flag(values) => write_values::<BoolType>(writer, values, levels)?,
        }
        self.levels.clear();
        Ok(())
    }
}

/// The number, or the largest one of the type if it does not fit.
fn saturate_to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Writes the values of a column with the type `T`, and empties `values`. `levels` has 1 for each row with a value and 0 for each null.
fn write_values<T: DataType>(
    writer: &mut SerializedColumnWriter<'_>,
    values: &mut Vec<T::T>,
    levels: Option<&[i16]>,
) -> Result<()> {
    // No column contains lists, whose elements would need repetition levels.
    let repetition_levels = None;
    writer.typed::<T>().write_batch(values, levels, repetition_levels)?;
    values.clear();
    Ok(())
}

/// Writes the values of all columns as a row group, and empties the columns.
fn write_columns(file: &mut SerializedFileWriter<Vec<u8>>, columns: &mut [ParquetColumn]) -> Result<()> {
    let mut group = file.next_row_group()?;
    for column in columns {
        // The schema has a column for each of these, so there is a writer for each.
        if let Some(mut writer) = group.next_column()? {
            column.write(&mut writer)?;
            writer.close()?;
        }
    }
    group.close()?;
    Ok(())
}

/// Opens a writer with the schema of these columns.
fn open_writer(columns: &[(&str, ColumnKind)], opening: &Opening) -> Result<SerializedFileWriter<Vec<u8>>> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        // Statistics and offsets of each page would grow with the file.
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_key_value_metadata(Some(vec![
            KeyValue::new("tokengap.version".to_owned(), opening.tokengap.clone()),
            KeyValue::new("tokengap.source".to_owned(), opening.source.clone()),
        ]))
        .build();
    let fields = columns.iter().map(|(name, kind)| schema_field(name, *kind)).collect::<Result<_>>()?;
    let schema = Type::group_type_builder("requests").with_fields(fields).build()?;
    SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))
}

/// Describes a column in the schema. Numbers are signed, because differences of unsigned numbers overflow in queries.
fn schema_field(name: &str, kind: ColumnKind) -> Result<Arc<Type>> {
    let (physical, logical) = match kind {
        ColumnKind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        ColumnKind::Number => (Physical::INT64, None),
        ColumnKind::Flag => (Physical::BOOLEAN, None),
        ColumnKind::Moment => {
            let is_utc = true;
            let micros = LogicalType::timestamp(is_utc, TimeUnit::MICROS);
            (Physical::INT64, Some(micros))
        }
    };
    Type::primitive_type_builder(name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical)
        .build()
        .map(Arc::new)
}

/// Makes an error of the encoder an I/O error.
fn io_error_of(error: ParquetError) -> io::Error {
    io::Error::other(error)
}
