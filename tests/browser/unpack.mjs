// Unpacks Chromium and the libraries that it needs into the folder TMPDIR, once, when the packages are installed.
// The package brings the libraries for one platform only; naming that one makes it unpack them on every machine.
process.env.AWS_EXECUTION_ENV = "AWS_Lambda_nodejs24.x";
const { default: chromium } = await import("@sparticuz/chromium");
console.log(await chromium.executablePath());
