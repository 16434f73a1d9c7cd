//! Reads columns of a record batch by name and logical type.

use std::borrow::Cow;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Date64Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, BooleanArray, RecordBatch};
use arrow_buffer::{BooleanBuffer, ScalarBuffer};
use arrow_schema::{DataType, TimeUnit};
use ssbroker_core::route::BLOCK;
use ssbroker_core::{Guid, GuidReader, Invalid, InvalidKind};

use crate::error::{Error, Result, type_name};
use crate::invalid_rows::InvalidRows;
use crate::masks::{ones, set_bits};
use crate::schema::{conversations, fragments as columns};
use crate::view::{BytesView, dictionary_parts};

/// A record batch of a table. Errors qualify column names and count rows over the whole input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) batch: &'a RecordBatch,
    /// The prefix of column names in errors; empty if there is only one table.
    pub(crate) table: &'static str,
    pub(crate) first_row: usize,
    /// Where to record invalid values; `None` to fail at the first one.
    pub(crate) invalid_rows: Option<&'a InvalidRows>,
}

/// An integer type, to which wider types are narrowed.
pub(crate) trait Integer: ArrowPrimitiveType<Native: TryFrom<i128>> {}

impl<T: ArrowPrimitiveType<Native: TryFrom<i128>>> Integer for T {}

fn integer_of<T: Integer>() -> String {
    format!("a {}-bit integer", 8 * size_of::<T::Native>())
}

/// Shorter names are too likely to resemble others by chance.
const LETTERS_MIN: usize = 8;

/// Whether a column name differs only in case, separators, or one letter of a long name, or is another common name for
/// the column.
#[must_use]
pub fn is_misspelling(found: &str, name: &str) -> bool {
    let letters = |text: &str| -> Vec<u8> {
        text.trim().bytes().filter(|byte| !b"_- ".contains(byte)).map(|byte| byte.to_ascii_lowercase()).collect()
    };
    let (found, wanted) = (letters(found), letters(name));
    let is_close = wanted.len() >= LETTERS_MIN && differ_by_one(&found, &wanted);
    found == wanted || is_close || other_names(name).iter().any(|other| letters(other) == found)
}

/// Whether one letter is missing, added, replaced, or swapped with the next one.
fn differ_by_one(one: &[u8], other: &[u8]) -> bool {
    let start = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (one, other) = (&one[start..], &other[start..]);
    let ends = |one: &[u8], other: &[u8], skipped: [usize; 2]| {
        one.len() >= skipped[0] && other.len() >= skipped[1] && one[skipped[0]..] == other[skipped[1]..]
    };
    let is_swapped = || ends(one, other, [2, 2]) && one[0] == other[1] && one[1] == other[0];
    ends(one, other, [1, 0]) || ends(one, other, [0, 1]) || ends(one, other, [1, 1]) || is_swapped()
}

/// Other common names for optional columns, which would otherwise be ignored silently.
fn other_names(name: &str) -> &'static [&'static str] {
    match name {
        conversations::TO_BROKER_INSTANCE => &["far_broker_instance", "to_broker_id", "to_broker_guid"],
        conversations::IS_INITIATOR => &["initiator"],
        _ => &[],
    }
}

impl<'a> Source<'a> {
    pub(crate) fn qualified(&self, column: &str) -> String {
        format!("{}{column}", self.table)
    }

    /// Returns a column. A missing column with a similar name is an error: ignoring a misspelled column would
    /// change results silently.
    pub(crate) fn column(&self, name: &str) -> Result<Option<&'a ArrayRef>> {
        let found = self.batch.column_by_name(name);
        if found.is_none()
            && let Some(misspelled) =
                self.batch.schema_ref().fields().iter().find(|field| is_misspelling(field.name(), name))
        {
            let (expected, actual) =
                ("a column with exactly this name".to_owned(), Some(format!("{:?}", misspelled.name())));
            return Err(Error::Schema { column: self.qualified(name), expected, actual });
        }
        Ok(found)
    }

    fn required(&self, name: &str, expected: &str) -> Result<&'a ArrayRef> {
        self.column(name)?.ok_or_else(|| self.mistyped(name, expected, None))
    }

    pub(crate) fn mistyped(&self, name: &str, expected: &str, actual: Option<&DataType>) -> Error {
        let actual = actual.map(type_name);
        Error::Schema { column: self.qualified(name), expected: expected.to_owned(), actual }
    }

    /// Error: two columns have the same name.
    pub(crate) fn duplicate_column(&self, name: &str) -> Error {
        let (expected, actual) = ("unique column names".to_owned(), Some("two columns with this name".to_owned()));
        Error::Schema { column: self.qualified(name), expected, actual }
    }

    /// Rejects duplicates of these column names; extra columns may have any names.
    pub(crate) fn reject_duplicates(&self, names: &[&str]) -> Result<()> {
        let fields = self.batch.schema_ref().fields();
        let is_duplicate = |name: &&&str| fields.iter().filter(|field| field.name() == **name).count() > 1;
        names.iter().find(is_duplicate).map_or(Ok(()), |name| Err(self.duplicate_column(name)))
    }

    pub(crate) fn invalid(
        &self,
        kind: InvalidKind,
        column: &str,
        row: usize,
        value: Option<&[u8]>,
        expected: &str,
    ) -> Error {
        Invalid::new(kind, &self.qualified(column), Some(self.first_row + row), value, expected).into()
    }

    pub(crate) fn null(&self, column: &str, row: usize, expected: &str) -> Error {
        self.invalid(InvalidKind::Null, column, row, None, expected)
    }

    /// Records an invalid value, so that the caller continues with a placeholder; fails with any other error, or if
    /// invalid values are not recorded.
    pub(crate) fn reject(&self, error: Error) -> Result<()> {
        match (error, self.invalid_rows) {
            (Error::Invalid(invalid @ Invalid { row: Some(row), .. }), Some(rows)) => {
                rows.add(row, invalid);
                Ok(())
            }
            (error, _) => Err(error),
        }
    }

    fn reject_nulls(&self, name: &str, view: &BytesView<'_>, expected: &str) -> Result<()> {
        view.null_rows().try_for_each(|row| self.reject(self.null(name, row, expected)))
    }

    pub(crate) fn out_of_bounds(&self, column: &str, row: usize) -> Error {
        let what = "an offset, view or dictionary key is out of bounds".to_owned();
        Error::Malformed { column: self.qualified(column), row: Some(self.first_row + row), what }
    }

    /// Returns a required text column.
    pub(crate) fn text(&self, name: &str) -> Result<BytesView<'a>> {
        self.as_text(name, self.required(name, "text")?)
    }

    /// Returns an optional text column.
    pub(crate) fn optional_text(&self, name: &str) -> Result<Option<BytesView<'a>>> {
        self.column(name)?.map(|array| self.as_text(name, array)).transpose()
    }

    fn as_text(&self, name: &str, array: &'a ArrayRef) -> Result<BytesView<'a>> {
        BytesView::new(array)
            .filter(|view| view.is_text || view.is_always_null())
            .ok_or_else(|| self.mistyped(name, "text", Some(array.data_type())))
    }

    /// Returns the text of a row that must not be null.
    pub(crate) fn text_at(&self, name: &str, view: &BytesView<'a>, row: usize) -> Result<&'a [u8]> {
        self.optional_text_at(name, view, row)?.ok_or_else(|| self.null(name, row, "text"))
    }

    /// Returns the text of a row.
    pub(crate) fn optional_text_at(&self, name: &str, view: &BytesView<'a>, row: usize) -> Result<Option<&'a [u8]>> {
        if view.is_null(row) {
            return Ok(None);
        }
        let bytes = view.get(row).map_err(|_| self.out_of_bounds(name, row))?;
        if std::str::from_utf8(bytes).is_err() {
            let (column, row) = (self.qualified(name), Some(self.first_row + row));
            return Err(Error::Malformed { column, row, what: "the text is not UTF-8".to_owned() });
        }
        Ok(Some(bytes))
    }

    /// Returns an optional binary column; all values that are not null are readable.
    pub(crate) fn optional_bytes(&self, name: &str) -> Result<Option<BytesView<'a>>> {
        let Some(array) = self.column(name)? else { return Ok(None) };
        let view = BytesView::new(array).filter(|view| !view.is_text);
        let view = view.ok_or_else(|| self.mistyped(name, "binary", Some(array.data_type())))?;
        view.first_unreadable().map_or(Ok(Some(view)), |row| Err(self.out_of_bounds(name, row)))
    }

    /// Returns a required binary column without nulls.
    pub(crate) fn bytes(&self, name: &str) -> Result<BytesView<'a>> {
        let view = self.optional_bytes(name)?.ok_or_else(|| self.mistyped(name, "binary", None))?;
        self.reject_nulls(name, &view, "bytes (may be empty)")?;
        Ok(view)
    }

    /// Returns a required boolean column without nulls.
    pub(crate) fn required_booleans(&self, name: &str) -> Result<BooleanBuffer> {
        let booleans = self.booleans(name)?.ok_or_else(|| self.mistyped(name, "bool", None))?;
        Ok(booleans.values().clone())
    }

    /// Returns an optional boolean column without nulls.
    pub(crate) fn booleans(&self, name: &str) -> Result<Option<BooleanArray>> {
        let Some(array) = self.nullable_booleans(name)? else { return Ok(None) };
        self.check_booleans(name, &array, 0, array.len())?;
        Ok(Some(array))
    }

    /// Rejects rows without a boolean among `len` rows from `start` of a column from `nullable_booleans`.
    pub(crate) fn check_booleans(&self, name: &str, array: &BooleanArray, start: usize, len: usize) -> Result<()> {
        if array.null_count() == 0 {
            return Ok(());
        }
        let mut nulls = (start..start + len).filter(|&row| array.is_null(row));
        nulls.try_for_each(|row| self.reject(self.not_boolean(name, row)))
    }

    #[cold]
    fn not_boolean(&self, name: &str, row: usize) -> Error {
        let integer = match self.column(name) {
            Ok(Some(array)) if array.data_type().is_integer() => self.wide_integers(name, &array.slice(row, 1), "bool"),
            _ => Ok(vec![None]),
        };
        match integer.as_deref() {
            Ok([Some(value)]) => {
                let text = value.to_string();
                self.invalid(InvalidKind::OutOfRange, name, row, Some(text.as_bytes()), "a bool, 1 or 0")
            }
            _ => self.null(name, row, "true or false"),
        }
    }

    /// Returns an optional boolean column; integers other than 1 and 0 are null. `check_booleans` reports them.
    pub(crate) fn nullable_booleans(&self, name: &str) -> Result<Option<BooleanArray>> {
        let Some(array) = self.column(name)? else { return Ok(None) };
        Ok(Some(match array.data_type() {
            DataType::Boolean => array.as_boolean().clone(),
            DataType::Null => BooleanArray::new_null(array.len()),
            integer if integer.is_integer() => self.booleans_of_integers(name, array)?,
            DataType::Dictionary(key, values) if **values == DataType::Boolean => {
                let (rows, values) = self.dictionary_rows(name, array, key)?;
                rows.into_iter().map(|row| row.map(|row| values.as_boolean().value(row))).collect()
            }
            other => return Err(self.mistyped(name, "bool", Some(other))),
        }))
    }

    /// Reads 1 and 0, which SQL Server returns for `bit` columns, as booleans.
    fn booleans_of_integers(&self, name: &str, array: &ArrayRef) -> Result<BooleanArray> {
        let values = self.wide_integers(name, array, "bool")?;
        Ok(values
            .into_iter()
            .map(|value| value.filter(|value| matches!(value, 0 | 1)).map(|value| value == 1))
            .collect())
    }

    /// Returns the index of each row's value in a dictionary; `None` for null.
    fn dictionary_rows(
        &self,
        name: &str,
        array: &'a ArrayRef,
        key: &DataType,
    ) -> Result<(Vec<Option<usize>>, &'a ArrayRef)> {
        let Some((keys, values)) = dictionary_parts(array, key) else {
            return Err(self.mistyped(name, "a dictionary with integer keys", Some(array.data_type())));
        };
        let position = |row: usize| match keys.get(row).filter(|_| array.is_valid(row)) {
            Some(position) if position >= values.len() => Err(self.out_of_bounds(name, row)),
            position => Ok(position.filter(|&position| values.is_valid(position))),
        };
        Ok(((0..array.len()).map(position).collect::<Result<_>>()?, values))
    }

    /// Reads the values of a column, decoding a dictionary.
    fn by_row<T: Copy>(
        &self,
        name: &str,
        array: &'a ArrayRef,
        read: impl Fn(&ArrayRef) -> Result<Vec<Option<T>>>,
    ) -> Result<Vec<Option<T>>> {
        let DataType::Dictionary(key, _) = array.data_type() else { return read(array) };
        let (rows, values) = self.dictionary_rows(name, array, key)?;
        let values = read(values)?;
        Ok(rows.into_iter().map(|row| row.and_then(|row| values[row])).collect())
    }

    /// Returns an optional integer column.
    pub(crate) fn integers<T: Integer>(&self, name: &str) -> Result<Option<Vec<Option<T::Native>>>> {
        let Some(array) = self.column(name)? else { return Ok(None) };
        self.narrow_integers::<T>(name, array).map(Some)
    }

    /// Returns a required integer column without nulls.
    pub(crate) fn required_integers<T: Integer>(&self, name: &str) -> Result<ScalarBuffer<T::Native>> {
        let array = self.required(name, &type_name(&T::DATA_TYPE))?;
        if let Some(array) = array.as_primitive_opt::<T>()
            && array.null_count() == 0
        {
            return Ok(array.values().clone());
        }
        let values = self.narrow_integers::<T>(name, array)?.into_iter().enumerate();
        let values = values.map(|(row, value)| match value {
            Some(value) => Ok(value),
            None => self.reject(self.null(name, row, &integer_of::<T>())).map(|()| T::Native::default()),
        });
        values.collect::<Result<Vec<_>>>().map(ScalarBuffer::from)
    }

    fn narrow_integers<T: Integer>(&self, name: &str, array: &'a ArrayRef) -> Result<Vec<Option<T::Native>>> {
        let expected = type_name(&T::DATA_TYPE);
        // Not within `by_row`: its errors could not name the row of a value in a dictionary.
        let values = match array.data_type() {
            DataType::Float32 => self.whole_numbers(name, array.as_primitive::<Float32Type>().iter(), &expected)?,
            DataType::Float64 => self.whole_numbers(name, array.as_primitive::<Float64Type>().iter(), &expected)?,
            _ => self.by_row(name, array, |array| self.wide_integers(name, array, &expected))?,
        };
        let narrow = values.into_iter().enumerate().map(|(row, value)| {
            value.map(T::Native::try_from).transpose().or_else(|_| {
                let text = value.unwrap_or_default().to_string();
                let kind = InvalidKind::OutOfRange;
                self.reject(self.invalid(kind, name, row, Some(text.as_bytes()), &integer_of::<T>())).map(|()| None)
            })
        });
        narrow.collect()
    }

    fn wide_integers(&self, name: &str, array: &ArrayRef, expected: &str) -> Result<Vec<Option<i128>>> {
        macro_rules! wide {
            ($type:ty) => {
                array.as_primitive::<$type>().iter().map(|value| value.map(i128::from)).collect()
            };
        }
        Ok(match array.data_type() {
            DataType::Int8 => wide!(Int8Type),
            DataType::Int16 => wide!(Int16Type),
            DataType::Int32 => wide!(Int32Type),
            DataType::Int64 => wide!(Int64Type),
            DataType::UInt8 => wide!(UInt8Type),
            DataType::UInt16 => wide!(UInt16Type),
            DataType::UInt32 => wide!(UInt32Type),
            DataType::UInt64 => wide!(UInt64Type),
            DataType::Null => vec![None; array.len()],
            other => return Err(self.mistyped(name, expected, Some(other))),
        })
    }

    /// Reads floating-point numbers without a fraction: pandas uses them for integer columns with missing values.
    fn whole_numbers(
        &self,
        name: &str,
        values: impl Iterator<Item = Option<impl Into<f64>>>,
        expected: &str,
    ) -> Result<Vec<Option<i128>>> {
        let whole = |(row, value): (usize, Option<_>)| match value.map(Into::<f64>::into) {
            None => Ok(None),
            Some(value) if value.fract() == 0.0 && value.abs() < 1e18 => Ok(Some(value as i128)),
            Some(value) => {
                let (kind, text) = (InvalidKind::OutOfRange, value.to_string());
                self.reject(self.invalid(kind, name, row, Some(text.as_bytes()), expected)).map(|()| None)
            }
        };
        values.enumerate().map(whole).collect()
    }

    /// Returns an optional timestamp column in microseconds since 1970, rounding finer units up. A date is midnight,
    /// UTC.
    pub(crate) fn timestamps(&self, name: &str) -> Result<Option<Vec<Option<i64>>>> {
        let Some(array) = self.column(name)? else { return Ok(None) };
        self.by_row(name, array, |array| self.timestamp_values(name, array)).map(Some)
    }

    fn timestamp_values(&self, name: &str, array: &ArrayRef) -> Result<Vec<Option<i64>>> {
        macro_rules! micros {
            ($type:ty, $convert:expr) => {
                array.as_primitive::<$type>().iter().map(|value| value.map($convert)).collect()
            };
        }
        Ok(match array.data_type() {
            DataType::Timestamp(TimeUnit::Second, _) => {
                micros!(TimestampSecondType, |value: i64| value.saturating_mul(1_000_000))
            }
            DataType::Timestamp(TimeUnit::Millisecond, _) => {
                micros!(TimestampMillisecondType, |value: i64| value.saturating_mul(1_000))
            }
            DataType::Timestamp(TimeUnit::Microsecond, _) => micros!(TimestampMicrosecondType, |value: i64| value),
            DataType::Timestamp(TimeUnit::Nanosecond, _) => {
                micros!(TimestampNanosecondType, |value: i64| value.div_euclid(1_000)
                    + i64::from(value.rem_euclid(1_000) > 0))
            }
            DataType::Date32 => {
                let midnight = |days: i32| i64::from(days).saturating_mul(86_400_000_000);
                array.as_primitive::<Date32Type>().iter().map(|days| days.map(midnight)).collect()
            }
            DataType::Date64 => micros!(Date64Type, |value: i64| value.saturating_mul(1_000)),
            DataType::Null => vec![None; array.len()],
            other => return Err(self.mistyped(name, "timestamp", Some(other))),
        })
    }
}

const GUID_FORMS: &str = "a GUID: 36 characters (braces allowed) or 16 bytes";

/// A column of GUIDs, as text or as 16 bytes.
#[derive(Debug)]
pub(crate) struct Guids<'a> {
    pub(crate) view: BytesView<'a>,
    reader: GuidReader,
    source: Source<'a>,
    column: &'static str,
}

impl<'a> Source<'a> {
    /// Returns a required column of GUIDs without nulls, by one of two names.
    pub(crate) fn required_guids(&self, name: &'static str, other: &'static str) -> Result<Cow<'a, [[u8; 16]]>> {
        let guids = self.guids(name)?.map_or_else(|| self.guids(other), |guids| Ok(Some(guids)))?;
        let guids = guids.ok_or_else(|| self.mistyped(name, GUID_FORMS, None))?;
        self.reject_nulls(guids.column, &guids.view, GUID_FORMS)?;
        if let Some(bytes) = guids.view.fixed(16) {
            return Ok(Cow::Borrowed(bytes.as_chunks().0));
        }
        let read = |row| match guids.get(row) {
            Ok(guid) => Ok(guid.0),
            Err(_) if guids.view.is_null(row) => Ok([0; 16]),
            Err(error) => self.reject(error).map(|()| [0; 16]),
        };
        (0..self.batch.num_rows()).map(read).collect::<Result<_>>().map(Cow::Owned)
    }

    /// Returns a required column of GUIDs.
    pub(crate) fn required_guids_or_null(&self, name: &'static str) -> Result<Guids<'a>> {
        self.guids(name)?.ok_or_else(|| self.mistyped(name, GUID_FORMS, None))
    }

    /// Returns an optional column of GUIDs.
    pub(crate) fn guids(&self, name: &'static str) -> Result<Option<Guids<'a>>> {
        let Some(array) = self.column(name)? else { return Ok(None) };
        let view = BytesView::new(array).ok_or_else(|| self.mistyped(name, GUID_FORMS, Some(array.data_type())))?;
        if matches!(array.data_type(), DataType::FixedSizeBinary(size) if *size != 16) {
            return Err(self.mistyped(name, GUID_FORMS, Some(array.data_type())));
        }
        Ok(Some(Guids { view, reader: GuidReader::best(), source: *self, column: name }))
    }
}

impl Guids<'_> {
    /// Reads the GUIDs of `len` rows from `start`, at most a block. Returns a mask of the rows that are not null.
    #[inline]
    pub(crate) fn get_block(&self, start: usize, len: usize, into: &mut [Guid]) -> Result<u64> {
        let valid = self.view.valid_bits(start, len);
        if self.view.is_text {
            self.read_texts(start, len, valid, into)?;
        } else if let Some(bytes) = self.view.fixed_run::<16>(start, len) {
            for (guid, bytes) in into.iter_mut().zip(bytes) {
                *guid = Guid(*bytes);
            }
        } else {
            self.read_each(start, valid, into)?;
        }
        Ok(valid)
    }

    /// Validates `len` rows from `start` without returning the GUIDs. `scratch` is used as memory.
    #[inline]
    pub(crate) fn check_block(&self, start: usize, len: usize, scratch: &mut [Guid]) -> Result<u64> {
        if !self.view.is_text && self.view.fixed_run::<16>(start, len).is_some() {
            return Ok(self.view.valid_bits(start, len));
        }
        self.get_block(start, len, scratch)
    }

    pub(crate) fn column(&self) -> &'static str {
        self.column
    }

    /// Returns the GUID of a row that is not null.
    #[inline]
    pub(crate) fn get(&self, row: usize) -> Result<Guid> {
        let bytes = self.view.get(row).map_err(|_| self.source.out_of_bounds(self.column, row))?;
        let guid = if self.view.is_text { Guid::parse(bytes) } else { bytes.try_into().map(Guid).ok() };
        guid.ok_or_else(|| self.wrong(row, bytes))
    }

    /// Returns the GUID of a row.
    pub(crate) fn optional(&self, row: usize) -> Result<Option<Guid>> {
        if self.view.is_null(row) { Ok(None) } else { self.get(row).map(Some) }
    }

    fn read_texts(&self, start: usize, len: usize, valid: u64, into: &mut [Guid]) -> Result<()> {
        self.view.prefetch(start + len, len);
        let run = if valid == ones(len) { self.view.fixed_run::<36>(start, len) } else { None };
        let all_read = if let Some(texts) = run {
            self.reader.read(texts.iter().map(Some).enumerate(), into)
        } else {
            let mut texts = [None; BLOCK];
            self.view.for_each(start, valid, |row, text| texts[row] = text.and_then(Guid::bare));
            self.reader.read(set_bits(valid).map(|row| (row, texts[row])), into)
        };
        if all_read { Ok(()) } else { self.read_each(start, valid, into) }
    }

    /// Reads rows one at a time, in any layout.
    fn read_each(&self, start: usize, valid: u64, into: &mut [Guid]) -> Result<()> {
        for row in set_bits(valid) {
            into[row] = self.get(start + row).map_err(|error| self.unreadable(start, valid).unwrap_or(error))?;
        }
        Ok(())
    }

    /// Unreadable values are reported before invalid GUIDs.
    #[cold]
    fn unreadable(&self, start: usize, valid: u64) -> Option<Error> {
        let row = set_bits(valid).find(|&row| self.view.get(start + row).is_err())?;
        Some(self.source.out_of_bounds(self.column, start + row))
    }

    #[cold]
    fn wrong(&self, row: usize, bytes: &[u8]) -> Error {
        let shown = if self.view.is_text { bytes.to_vec() } else { hex(bytes).into_bytes() };
        self.source.invalid(InvalidKind::Guid, self.column, row, Some(&shown), GUID_FORMS)
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().take(40).fold(String::from("0x"), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The columns that identify a message: conversation, direction and sequence number.
#[derive(Debug)]
pub(crate) struct MessageKeys<'a> {
    pub(crate) conversations: Cow<'a, [[u8; 16]]>,
    pub(crate) is_initiator: BooleanBuffer,
    pub(crate) sequences: ScalarBuffer<i64>,
}

impl<'a> MessageKeys<'a> {
    pub(crate) fn read(source: Source<'a>) -> Result<Self> {
        Ok(Self {
            conversations: source.required_guids(columns::CONVERSATION_ID, columns::CONVERSATION_HANDLE)?,
            is_initiator: source.required_booleans(columns::IS_INITIATOR)?,
            sequences: source.required_integers::<Int64Type>(columns::MESSAGE_SEQUENCE_NUMBER)?,
        })
    }

    #[inline]
    pub(crate) fn conversation(&self, row: usize) -> Guid {
        Guid(self.conversations[row])
    }
}
