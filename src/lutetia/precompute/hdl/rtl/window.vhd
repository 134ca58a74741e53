library ieee;
use ieee.std_logic_1164.all;
use ieee.numeric_std.all;

-- Sliding windows over frames of HEIGHT x WIDTH samples, in raster order, PAD_Y and PAD_X places of padding in front,
-- END_Y and END_X behind.
-- One step per place: inside the frame it accepts a sample, in the padding it takes FILL. After the place of a window's last tap
-- the window is valid; it does not step on while that waits. Frames follow each other without a reset. Latency 1.
entity lutetia_window is
    generic (
        BITS : positive := 1;        -- of a sample
        HEIGHT : positive := 1;
        WIDTH : natural := 0;        -- 0: an endless row
        PAD_Y, PAD_X : natural := 0;
        END_Y, END_X : natural := 0;
        FIELD_Y, FIELD_X : natural := 0;  -- places before the last tap of the first window
        STRIDE_Y, STRIDE_X : positive := 1;
        DEPTH : positive := 1;       -- samples that are kept
        TAPS : positive := 1;
        OFFSETS : integer_vector;    -- of each tap, in samples before the newest one
        FILL : std_logic_vector
    );
    port (
        clk, rst : in std_logic;
        in_data : in std_logic_vector(BITS - 1 downto 0);
        in_valid : in std_logic;
        in_ready : out std_logic;
        out_data : out std_logic_vector(BITS * TAPS - 1 downto 0);  -- tap 0 in the lowest bits
        out_valid : out std_logic;
        out_ready : in std_logic
    );
end entity;

architecture behaviour of lutetia_window is
    constant COLUMNS : natural := WIDTH + PAD_X + END_X;
    constant ROWS : positive := HEIGHT + PAD_Y + END_Y;
    constant PLACES : integer_vector(0 to TAPS - 1) := OFFSETS;
    constant PADDING : std_logic_vector(BITS - 1 downto 0) := FILL;
    signal line : std_logic_vector(BITS * DEPTH - 1 downto 0);  -- the newest sample in the lowest bits
    signal sample : std_logic_vector(BITS - 1 downto 0);
    signal longer : std_logic_vector(BITS * (DEPTH + 1) - 1 downto 0);
    signal full, free, in_frame, move : std_logic;
    signal x : natural range 0 to COLUMNS := 0;
    signal y : natural range 0 to ROWS := 0;
    signal wait_x : natural range 0 to FIELD_X + STRIDE_X := 0;  -- places left to the next window
    signal wait_y : natural range 0 to FIELD_Y + STRIDE_Y := 0;
begin
    in_frame <= '1' when (PAD_X + END_X = 0 or (x >= PAD_X and x < PAD_X + WIDTH))
        and (PAD_Y + END_Y = 0 or (y >= PAD_Y and y < PAD_Y + HEIGHT)) else '0';
    free <= out_ready or not full;
    move <= free and (in_valid or not in_frame);
    sample <= in_data when in_frame = '1' else PADDING;
    longer <= line & sample;
    in_ready <= free and in_frame;
    out_valid <= full;
    each_tap : for tap in 0 to TAPS - 1 generate
        out_data(BITS * tap + BITS - 1 downto BITS * tap)
            <= line(BITS * PLACES(tap) + BITS - 1 downto BITS * PLACES(tap));
    end generate;
    process (clk) begin
        if rising_edge(clk) then
            if move = '1' then  -- without a reset, so that a synthesiser can make shift registers of it
                line <= longer(BITS * DEPTH - 1 downto 0);
            end if;
            if rst = '1' then
                full <= '0';
                x <= 0;
                y <= 0;
                wait_x <= FIELD_X;
                wait_y <= FIELD_Y;
            else
                if move = '1' and wait_x = 0 and wait_y = 0 then
                    full <= '1';
                else
                    full <= full and not out_ready;
                end if;
                if move = '1' then
                    if WIDTH /= 0 and x = COLUMNS - 1 then
                        x <= 0;
                        wait_x <= FIELD_X;
                        if y = ROWS - 1 then
                            y <= 0;
                            wait_y <= FIELD_Y;
                        else
                            y <= y + 1;
                            if wait_y = 0 then wait_y <= STRIDE_Y - 1; else wait_y <= wait_y - 1; end if;
                        end if;
                    else
                        if WIDTH /= 0 then x <= x + 1; end if;
                        if wait_x = 0 then wait_x <= STRIDE_X - 1; else wait_x <= wait_x - 1; end if;
                    end if;
                end if;
            end if;
        end if;
    end process;
end architecture;
